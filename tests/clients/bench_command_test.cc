// `longspan bench` against a served fake: what it needs and what its exit code says.
#include "clients/bench_command.h"

#include <gtest/gtest.h>

#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "server/grpc_server.h"
#include "tests/server/served_fake.h"

namespace longspan {
namespace {

using testing::FakeModelOptions;
using testing::RecordingLifecycle;
using testing::RecordingObserver;
using testing::ServedFake;

int NumThreads() {
  std::ifstream file("/proc/self/status");
  std::string word;
  int threads = 0;
  while (file >> word) {
    if (word == "Threads:") file >> threads;
  }
  return threads;
}

class BenchCommand : public ::testing::Test {
 protected:
  void Serve(const FakeModelOptions& options) {
    GrpcServerOptions grpc;
    grpc.listen = "127.0.0.1:0";
    auto server = GrpcServer::Start(grpc, ServerInfo(), clock_, observer_, lifecycle_);
    ASSERT_TRUE(server.ok()) << StatusMessage(server.status());
    server_ = *std::move(server);
    served_ = std::make_unique<ServedFake>(options, clock_, server_->outbox());
    server_->SetServing(served_->fake.model, *served_->engine);
    connection_ = Connect(server_->address());
  }
  void TearDown() override {
    served_->engine->Stop();
    server_->Shutdown(std::chrono::seconds(60));
    served_.reset();
  }
  static BenchOptions Load(int32_t num_requests) {
    BenchOptions options;
    options.plan.num_requests = num_requests;
    options.plan.input_len = 4;
    options.plan.output_len = 2;
    options.progress = false;
    return options;
  }

  SteadyClock clock_;
  RecordingObserver observer_;
  RecordingLifecycle lifecycle_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<ServedFake> served_;
  Connection connection_;
};

TEST_F(BenchCommand, RequestsInFlightNeedNoThreadsOfTheirOwn) {
  Serve({});  // the engine does not run yet: all of them wait
  constexpr int32_t kRequests = 500;
  const int before = NumThreads();
  auto exit_code =
      std::async(std::launch::async, [&] { return RunBench(connection_, Load(kRequests)); });
  while (server_->num_open_requests() < kRequests) std::this_thread::yield();
  EXPECT_LT(NumThreads(), before + 100);
  served_->engine->Start();
  EXPECT_EQ(exit_code.get(), 0);
  EXPECT_EQ(observer_.outcome(RequestOutcome::kLength), kRequests);
}

TEST_F(BenchCommand, AClosedLoopKeepsItsBound) {
  Serve({});
  BenchOptions options = Load(50);
  options.max_concurrency = 3;
  auto exit_code = std::async(std::launch::async, [&] { return RunBench(connection_, options); });
  while (server_->num_open_requests() < 3) std::this_thread::yield();
  for (int i = 0; i < 1000; ++i) {
    EXPECT_LE(server_->num_open_requests(), 3);
    std::this_thread::yield();
  }
  served_->engine->Start();
  EXPECT_EQ(exit_code.get(), 0);
}

TEST_F(BenchCommand, TheExitCodeIsThatOfTheFirstFailure) {
  FakeModelOptions model;
  model.max_queued_requests = 1;
  Serve(model);
  auto exit_code = std::async(std::launch::async, [&] { return RunBench(connection_, Load(20)); });
  while (observer_.outcome(RequestOutcome::kRejected) < 19) std::this_thread::yield();
  served_->engine->Start();
  EXPECT_EQ(exit_code.get(), 64 + grpc::StatusCode::RESOURCE_EXHAUSTED);
}

}  // namespace
}  // namespace longspan
