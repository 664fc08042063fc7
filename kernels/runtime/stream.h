// Owners of a stream, of an event, and of work captured into a graph. One thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "kernels/runtime/gpu_result.h"
#include "kernels/runtime/stream_handle.h"

namespace longspan {

// Work in the order it was enqueued, apart from every other stream.
class GpuStream {
 public:
  static std::optional<GpuStream> Create();
  GpuStreamHandle handle() const { return stream_.get(); }
  GpuResult Synchronize();

 private:
  struct Destroy {
    void operator()(void* stream) const;
  };
  explicit GpuStream(void* stream) : stream_(stream) {}
  std::unique_ptr<void, Destroy> stream_;
};

// A point in a stream's work, with a time stamp.
class GpuEvent {
 public:
  static std::optional<GpuEvent> Create();
  GpuResult Record(const GpuStream& stream);
  GpuResult Synchronize();
  // Both events have been reached.
  double MillisecondsSince(const GpuEvent& start) const;

 private:
  struct Destroy {
    void operator()(void* event) const;
  };
  explicit GpuEvent(void* event) : event_(event) {}
  std::unique_ptr<void, Destroy> event_;
};

// Work that was recorded once and is enqueued as a whole, reading memory as it is at that time.
class GpuGraph {
 public:
  // Calls enqueue, which enqueues on the stream and synchronises nothing. Nothing on an error.
  static std::optional<GpuGraph> Capture(const GpuStream& stream,
                                         const std::function<void()>& enqueue);
  GpuResult Launch(const GpuStream& stream);

 private:
  struct Destroy {
    void operator()(void* graph) const;
  };
  explicit GpuGraph(void* graph) : graph_(graph) {}
  std::unique_ptr<void, Destroy> graph_;
};

}  // namespace longspan
