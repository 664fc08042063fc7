// The life of the process: bind, load, serve, drain, exit. Everything else is told what to do from
// here; no request passes through it.
//
//   loading --(warm-up step ran)--> serving --(SIGTERM, Drain)--> draining --> exit 0
//      |                               `------(device lost)-----> failed ----> exit 1
//      `--(SIGTERM, Drain)--> exit 0
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/clock.h"
#include "engine/serving_core.h"
#include "server/grpc_server.h"
#include "server/metrics.h"
#include "server/metrics_endpoint.h"
#include "server/options.h"
#include "server/server_context.h"
#include "tokenizer/tokenizer.h"

namespace longspan {

enum class ExitCode : int { kOk = 0, kFailed = 1, kOptions = 2, kResources = 3, kFiles = 4 };

class Application final : public LifecycleHandler {
 public:
  explicit Application(ServerOptions options);
  ~Application() override;

  // Runs until the process should end. One sentence goes to standard error when it fails.
  ExitCode Run();

  // Any thread.
  void RequestDrain(std::optional<Duration> timeout) override;

 private:
  ExitCode Bind();
  ExitCode Load();
  ExitCode Serve();
  ExitCode Drain();
  ExitCode EndAfterDeviceLoss();
  [[noreturn]] void EndStuck(Duration age);  // on the watchdog's thread
  Status WriteReadyFile() const;
  Status RemoveReadyFile() const;  // OK when there is none
  Status MakeTokenizer(const ModelConfig& config, const VocabularyData& data);
  std::map<std::string, std::string> ChosenFlags(const std::string& model_name) const;
  void OnSignal(int number);
  bool StopNow();
  TimePoint DrainDeadline();

  ServerOptions options_;
  SteadyClock clock_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<MetricsEndpoint> endpoint_;  // null when off
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ServedModel> model_;
  std::unique_ptr<ServingCore> core_;  // before server_ in destruction: it pushes into its outbox

  std::mutex mutex_;  // what follows: set by signals, the Admin service and the engine
  std::condition_variable changed_;
  std::optional<TimePoint> drain_deadline_;  // set: drain; the earliest that was asked for
  int num_stop_signals_ = 0;                 // two: stop now
  bool device_lost_ = false;
  bool loading_ = true;
  std::atomic<bool> cancel_loading_{false};  // a drain was asked for; read while weights are loaded
};

}  // namespace longspan
