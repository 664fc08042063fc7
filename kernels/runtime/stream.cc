// Streams, events and graphs of the runtime.
#include "kernels/runtime/stream.h"

#include "kernels/gpu.h"

namespace longspan {
namespace {

GpuNativeStream Native(const GpuStream& stream) {
  return static_cast<GpuNativeStream>(stream.handle());
}

}  // namespace

void GpuStream::Destroy::operator()(void* stream) const {
  (void)cudaStreamDestroy(static_cast<GpuNativeStream>(stream));
}

std::optional<GpuStream> GpuStream::Create() {
  GpuNativeStream stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return std::nullopt;
  return GpuStream(stream);
}

GpuResult GpuStream::Synchronize() { return {cudaStreamSynchronize(Native(*this))}; }

void GpuEvent::Destroy::operator()(void* event) const {
  (void)cudaEventDestroy(static_cast<GpuNativeEvent>(event));
}

std::optional<GpuEvent> GpuEvent::Create() {
  GpuNativeEvent event = nullptr;
  if (cudaEventCreate(&event) != cudaSuccess) return std::nullopt;
  return GpuEvent(event);
}

GpuResult GpuEvent::Record(const GpuStream& stream) {
  return {cudaEventRecord(static_cast<GpuNativeEvent>(event_.get()), Native(stream))};
}

GpuResult GpuEvent::Synchronize() {
  return {cudaEventSynchronize(static_cast<GpuNativeEvent>(event_.get()))};
}

double GpuEvent::MillisecondsSince(const GpuEvent& start) const {
  float milliseconds = 0.0f;
  (void)cudaEventElapsedTime(&milliseconds, static_cast<GpuNativeEvent>(start.event_.get()),
                             static_cast<GpuNativeEvent>(event_.get()));
  return milliseconds;
}

void GpuGraph::Destroy::operator()(void* graph) const {
  (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

std::optional<GpuGraph> GpuGraph::Capture(const GpuStream& stream,
                                          const std::function<void()>& enqueue) {
  if (cudaStreamBeginCapture(Native(stream), cudaStreamCaptureModeThreadLocal) != cudaSuccess) {
    return std::nullopt;
  }
  enqueue();
  cudaGraph_t recorded = nullptr;
  if (cudaStreamEndCapture(Native(stream), &recorded) != cudaSuccess) return std::nullopt;
  cudaGraphExec_t graph = nullptr;
  const GpuErrorCode error = cudaGraphInstantiate(&graph, recorded, 0);
  (void)cudaGraphDestroy(recorded);
  if (error != cudaSuccess) return std::nullopt;
  return GpuGraph(graph);
}

GpuResult GpuGraph::Launch(const GpuStream& stream) {
  return {cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph_.get()), Native(stream))};
}

}  // namespace longspan
