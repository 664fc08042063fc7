// The whole edge over a real port or socket, with a model that needs no arithmetic: raw bytes,
// metadata, health, life of the server, unary methods, Admin.
#include "server/grpc_server.h"

#include <arpa/inet.h>
#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "longspan/v1/admin.grpc.pb.h"
#include "longspan/v1/inference.grpc.pb.h"
#include "tests/server/served_fake.h"
#include "tests/support/fake_clock.h"
#include "tests/support/temporary_folder.h"

namespace longspan {
namespace {

using testing::FakeModelOptions;
using testing::RecordingLifecycle;
using testing::RecordingObserver;
using testing::ServedFake;
using testing::TemporaryFolder;

constexpr auto kPatience = std::chrono::seconds(60);

v1::GenerateRequest Request(int32_t prompt_id, int32_t max_tokens) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(prompt_id);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stop()->set_max_tokens(max_tokens);
  return request;
}

struct Answer {
  grpc::Status status;
  std::vector<v1::GenerateResponse> responses;
  std::vector<int32_t> ids() const {
    std::vector<int32_t> out;
    for (const auto& response : responses) {
      out.insert(out.end(), response.chunk().token_ids().begin(),
                 response.chunk().token_ids().end());
    }
    return out;
  }
};

class GrpcServerTest : public ::testing::Test {
 protected:
  void StartServer(GrpcServerOptions options = {}) {
    options.listen = "127.0.0.1:0";
    options.admin_listen = "unix:" + folder_.Path("admin");
    auto server = GrpcServer::Start(options, Info(), clock_, observer_, lifecycle_);
    ASSERT_TRUE(server.ok()) << StatusMessage(server.status());
    server_ = *std::move(server);
    channel_ = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
    stub_ = v1::Inference::NewStub(channel_);
    admin_ = v1::Admin::NewStub(
        grpc::CreateChannel(server_->admin_address(), grpc::InsecureChannelCredentials()));
  }
  void Load(const FakeModelOptions& options = {}) {
    served_ = std::make_unique<ServedFake>(options, clock_, server_->outbox());
    served_->engine->Start();
    server_->SetServing(served_->fake.model, *served_->engine);
  }
  void StartAndLoad(const FakeModelOptions& options = {}) {
    StartServer();
    Load(options);
  }
  ServerInfo Info() const {
    ServerInfo info;
    info.version = "1.2.3";
    info.flags["block-size"] = "4";
    info.start_time = clock_.Now();
    return info;
  }

  void TearDown() override {
    if (server_ == nullptr) return;
    if (served_ != nullptr) {
      EXPECT_TRUE(served_->engine->WaitIdle(clock_.Now() + kPatience));
      EXPECT_EQ(served_->engine->stats().blocks_held, 0);
      EXPECT_EQ(Generate(Request(41, 4)).ids(), Canary()) << "the canary";
      served_->engine->Stop();
    }
    server_->Shutdown(kPatience);
    EXPECT_EQ(server_->num_open_requests(), 0);
    served_.reset();
    server_.reset();
  }
  // Empty while the server is on its way down.
  std::vector<int32_t> Canary() const {
    if (server_->context().phase() != ServerPhase::kServing) return {};
    return {42, 43, 44, 45};
  }

  Answer Generate(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    return Generate(request, context);
  }
  Answer Generate(const v1::GenerateRequest& request, grpc::ClientContext& context) {
    Answer answer;
    auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse response;
    while (reader->Read(&response)) answer.responses.push_back(response);
    answer.status = reader->Finish();
    return answer;
  }
  // Sends bytes as they are and reads every reply.
  grpc::Status SendRaw(const std::string& method, const std::string& bytes) {
    grpc::GenericStub generic(channel_);
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    void* tag = nullptr;
    const auto wait = [&] {
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    auto call = generic.PrepareCall(&context, method, &queue);
    call->StartCall(this);
    if (wait()) {
      const grpc::Slice slice(bytes);
      call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), this);
      wait();
      grpc::ByteBuffer reply;
      do {
        call->Read(&reply, this);
      } while (wait());
    }
    grpc::Status status;
    call->Finish(&status, this);
    wait();
    return status;
  }
  grpc::health::v1::HealthCheckResponse::ServingStatus Health(const std::string& service) {
    auto stub = grpc::health::v1::Health::NewStub(channel_);
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    grpc::health::v1::HealthCheckResponse response;
    const grpc::Status status = stub->Check(&context, request, &response);
    EXPECT_TRUE(status.ok()) << service << " " << status.error_message();
    return response.status();
  }

  TemporaryFolder folder_;
  SteadyClock clock_;
  RecordingObserver observer_;
  RecordingLifecycle lifecycle_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<ServedFake> served_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  std::unique_ptr<v1::Admin::Stub> admin_;
};

using HealthResponse = grpc::health::v1::HealthCheckResponse;

TEST_F(GrpcServerTest, LoadingServingDrainingAreSeenFromOutside) {
  StartServer();
  for (const char* service : {"", "longspan.v1.Inference"}) {
    EXPECT_EQ(Health(service), HealthResponse::NOT_SERVING);
  }
  EXPECT_EQ(Generate(Request(1, 3)).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  {
    grpc::ClientContext context;
    v1::GetServerInfoResponse info;
    ASSERT_TRUE(stub_->GetServerInfo(&context, {}, &info).ok());
    EXPECT_EQ(info.state(), v1::SERVER_STATE_LOADING);
    EXPECT_EQ(info.version(), "1.2.3");
    EXPECT_EQ(info.flags().at("block-size"), "4");
  }
  {
    grpc::ClientContext context;
    v1::GetModelInfoResponse info;
    EXPECT_EQ(stub_->GetModelInfo(&context, {}, &info).error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  Load();
  for (const char* service : {"", "longspan.v1.Inference"}) {
    EXPECT_EQ(Health(service), HealthResponse::SERVING);
  }
  EXPECT_EQ(Generate(Request(1, 3)).ids(), (std::vector<int32_t>{2, 3, 4}));
  server_->StartDraining();
  for (const char* service : {"", "longspan.v1.Inference"}) {
    EXPECT_EQ(Health(service), HealthResponse::NOT_SERVING);
  }
  EXPECT_EQ(Generate(Request(1, 3)).status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(GrpcServerTest, TextInTextOut) {
  StartAndLoad();
  v1::GenerateRequest request;
  request.set_text("a");
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stop()->set_max_tokens(3);
  const Answer answer = Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  std::string text;
  for (const auto& response : answer.responses) text += response.chunk().text();
  EXPECT_EQ(text, "bcd");
}

TEST_F(GrpcServerTest, Fault_C15_MalformedMessagesAreInvalidArgument) {
  StartAndLoad();
  const std::vector<std::string> bad = {
      "\xff",                              // half a tag
      std::string("\x1a\x05xy", 4),        // text of 5 bytes with 2
      std::string("\x0a\x02\xc3\x28", 4),  // request_id that is not UTF-8
      std::string(1000, '\x0b'),           // groups that never end
  };
  for (const char* method : {"Generate", "Abort", "Tokenize", "Detokenize", "GetModelInfo",
                             "GetServerInfo", "GetLoad"}) {
    const std::string path = std::string("/longspan.v1.Inference/") + method;
    EXPECT_EQ(SendRaw(path, bad[0]).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_EQ(SendRaw(path, bad[3]).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
  }
  for (const std::string& bytes : bad) {
    const grpc::Status status = SendRaw("/longspan.v1.Inference/Generate", bytes);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_NE(status.error_message().find("longspan.v1.GenerateRequest"), std::string::npos);
  }
}

TEST_F(GrpcServerTest, Fault_C15_UnknownFieldsAreIgnored) {
  StartAndLoad();
  std::string bytes = Request(7, 2).SerializeAsString();
  bytes += std::string("\xa2\x06\x03new", 6);  // field 100, a string
  EXPECT_TRUE(SendRaw("/longspan.v1.Inference/Generate", bytes).ok());
}

TEST_F(GrpcServerTest, Fault_C15_MutatedRequestsNeverHurt) {
  StartAndLoad();
  std::mt19937 random(3);
  const std::string good = [] {
    v1::GenerateRequest request = Request(7, 2);
    request.set_request_id("r");
    request.mutable_stop()->add_strings("stop");
    (*request.mutable_sampling()->mutable_logit_bias())[3] = 1.0f;
    request.set_cache_salt("salt");
    return request.SerializeAsString();
  }();
  for (int i = 0; i < 1000; ++i) {
    std::string bytes = good;
    for (uint32_t edits = 1 + random() % 4; edits > 0; --edits) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const grpc::StatusCode code = SendRaw("/longspan.v1.Inference/Generate", bytes).error_code();
    EXPECT_TRUE(code == grpc::StatusCode::OK || code == grpc::StatusCode::INVALID_ARGUMENT ||
                code == grpc::StatusCode::NOT_FOUND)
        << code;
  }
}

TEST_F(GrpcServerTest, ErrorsNameTheFieldWithBadRequest) {
  StartAndLoad();
  v1::GenerateRequest request = Request(512, 3);
  const Answer answer = Generate(request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(answer.status.error_details()));
  google::rpc::BadRequest bad_request;
  ASSERT_TRUE(details.details(0).UnpackTo(&bad_request));
  EXPECT_EQ(bad_request.field_violations(0).field(), "token_ids.ids[0]");
}

TEST_F(GrpcServerTest, Fault_C12_LargeMetadataIsRefusedByTheHandlerAlone) {
  StartAndLoad();
  const auto with_metadata = [&](size_t bytes, int count) {
    grpc::ClientContext context;
    for (int i = 0; i < count; ++i) {
      context.AddMetadata("key" + std::to_string(i), std::string(bytes, 'x'));
    }
    return Generate(Request(1, 2), context).status.error_code();
  };
  grpc::ClientContext neighbour_context;
  auto neighbour = stub_->Generate(&neighbour_context, Request(1, 200));
  EXPECT_EQ(with_metadata(9 * 1024, 1), grpc::StatusCode::OK);
  EXPECT_EQ(with_metadata(17 * 1024, 1), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(with_metadata(1, 10'000), grpc::StatusCode::RESOURCE_EXHAUSTED);
  v1::GenerateResponse response;
  int32_t tokens = 0;
  while (neighbour->Read(&response)) tokens += response.chunk().token_ids_size();
  EXPECT_TRUE(neighbour->Finish().ok()) << "others on the connection are unaffected";
  EXPECT_EQ(tokens, 200);
}

TEST_F(GrpcServerTest, Fault_C13_MessagesUpToTheLimitReachTheHandler) {
  GrpcServerOptions options;
  options.max_message_bytes = 1024 * 1024;
  StartServer(options);
  Load();
  v1::GenerateRequest request = Request(1, 2);
  const auto send_of_size = [&](int64_t size) {
    request.set_cache_salt("");
    request.set_cache_salt(
        std::string(static_cast<size_t>(size) - request.ByteSizeLong() - 2, 's'));
    while (static_cast<int64_t>(request.ByteSizeLong()) > size)
      request.mutable_cache_salt()->pop_back();
    EXPECT_EQ(static_cast<int64_t>(request.ByteSizeLong()), size);
    return Generate(request).status.error_code();
  };
  EXPECT_EQ(send_of_size(options.max_message_bytes - 1), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(send_of_size(options.max_message_bytes), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(send_of_size(options.max_message_bytes + 1), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(GrpcServerTest, Fault_C16_GarbageClosesThatConnectionOnly) {
  StartAndLoad();
  std::mt19937 random(5);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const std::string& address = server_->address();
  name.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  for (int i = 0; i < 1000; ++i) {
    std::string payload;
    if (i == 0) payload = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    if (i == 1)
      payload = std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);  // TLS hello
    if (i == 2) payload = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string(64, '\xff');
    while (i > 2 && payload.size() < 1 + random() % 300) payload += static_cast<char>(random());
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
    ASSERT_GE(::send(fd, payload.data(), payload.size(), MSG_NOSIGNAL), 0);
    if (i % 10 == 0) {  // these wait for the server's answer, the others just leave
      ::shutdown(fd, SHUT_WR);
      char buffer[512];
      while (::recv(fd, buffer, sizeof buffer, 0) > 0) {
      }
    }
    ::close(fd);
  }
  EXPECT_EQ(Generate(Request(1, 3)).ids(), (std::vector<int32_t>{2, 3, 4}));
}

TEST_F(GrpcServerTest, Fault_C10_RapidResetsLeaveNothingBehind) {
  StartAndLoad();
  constexpr int kCalls = 2000;
  for (int i = 0; i < kCalls; ++i) {
    grpc::ClientContext context;
    auto reader = stub_->Generate(&context, Request(1, 100));
    context.TryCancel();
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
    }
    reader->Finish();
  }
  EXPECT_LE(observer_.num_ended(), kCalls);
}

TEST_F(GrpcServerTest, Fault_C3_CancelFreesTheRequest) {
  StartAndLoad();
  for (int k = 1; k <= 12; ++k) {
    grpc::ClientContext context;
    auto reader = stub_->Generate(&context, Request(1, 250));
    v1::GenerateResponse response;
    int tokens = 0;
    while (tokens < k && reader->Read(&response)) tokens += response.chunk().token_ids_size();
    context.TryCancel();
    while (reader->Read(&response)) {
    }
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::CANCELLED);
  }
}

TEST_F(GrpcServerTest, Fault_U2_OneIdAtATime) {
  StartAndLoad();
  served_->runner->on_launch = [](const SchedulerOutput&) { std::this_thread::yield(); };
  v1::GenerateRequest request = Request(1, 250);
  request.set_request_id("twin");
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  const Answer second = Generate(request);
  // The first may have ended meanwhile; then the id was free.
  if (!second.status.ok()) {
    EXPECT_EQ(second.status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  }
  while (reader->Read(&response)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(GrpcServerTest, AbortFindsOnlyWhatIsThere) {
  StartAndLoad();
  v1::AbortRequest request;
  v1::AbortResponse response;
  request.set_request_id("nobody");
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->Abort(&context, request, &response).ok());
  EXPECT_FALSE(response.found());
}

TEST_F(GrpcServerTest, TokenizeAndDetokenizeAreInverse) {
  StartAndLoad();
  v1::TokenizeRequest tokenize;
  tokenize.set_text("héllo 😀");
  v1::TokenizeResponse ids;
  grpc::ClientContext first;
  ASSERT_TRUE(stub_->Tokenize(&first, tokenize, &ids).ok());
  v1::DetokenizeRequest detokenize;
  *detokenize.mutable_token_ids() = ids.token_ids();
  v1::DetokenizeResponse text;
  grpc::ClientContext second;
  ASSERT_TRUE(stub_->Detokenize(&second, detokenize, &text).ok());
  EXPECT_EQ(text.text(), tokenize.text());
}

TEST_F(GrpcServerTest, RepliesOverFourMegabytesAreRefused) {
  StartAndLoad();
  v1::TokenizeRequest request;
  request.set_text(std::string(5'000'000, 'a'));
  v1::TokenizeResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub_->Tokenize(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_EQ(status.error_message(), "text: more than 1000000 tokens (limit 1000000)");
}

TEST_F(GrpcServerTest, ModelInfoAndLoad) {
  StartAndLoad();
  grpc::ClientContext first;
  v1::GetModelInfoResponse info;
  ASSERT_TRUE(stub_->GetModelInfo(&first, {}, &info).ok());
  EXPECT_EQ(info.name(), "fake");
  EXPECT_EQ(info.vocab_size(), 512);
  EXPECT_EQ(info.context_length(), 256);
  EXPECT_EQ(info.tokenizer_kind(), "byte_level_bpe");
  grpc::ClientContext second;
  v1::GetLoadResponse load;
  ASSERT_TRUE(stub_->GetLoad(&second, {}, &load).ok());
  EXPECT_EQ(load.total_blocks(), 64);
  EXPECT_EQ(load.used_blocks(), 0);
}

TEST_F(GrpcServerTest, AdminAnswersOnItsOwnListenerOnly) {
  StartAndLoad();
  EXPECT_EQ(SendRaw("/longspan.v1.Admin/Drain", "").error_code(), grpc::StatusCode::UNIMPLEMENTED);
  grpc::ClientContext list_context;
  v1::ListRequestsResponse list;
  ASSERT_TRUE(admin_->ListRequests(&list_context, {}, &list).ok());
  EXPECT_EQ(list.requests_size(), 0);
  grpc::ClientContext reset_context;
  v1::ResetPrefixCacheResponse reset;
  EXPECT_TRUE(admin_->ResetPrefixCache(&reset_context, {}, &reset).ok());
  grpc::ClientContext level_context;
  v1::SetLogLevelRequest level;
  v1::SetLogLevelResponse previous;
  level.set_level("shout");
  EXPECT_EQ(admin_->SetLogLevel(&level_context, level, &previous).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  grpc::ClientContext drain_context;
  v1::DrainRequest drain;
  drain.set_timeout_seconds(1.5);
  v1::DrainResponse drained;
  ASSERT_TRUE(admin_->Drain(&drain_context, drain, &drained).ok());
  ASSERT_EQ(lifecycle_.drains().size(), 1u);
  EXPECT_EQ(lifecycle_.drains()[0], Duration(std::chrono::milliseconds(1500)));
}

// One request is paused since its client does not read, one runs, and there is no slot for the
// third.
TEST_F(GrpcServerTest, ListRequestsShowsRunningPausedAndWaitingOnes) {
  FakeModelOptions model;
  model.max_num_seqs = 1;
  model.max_model_len = 1 << 20;  // none of them comes to its end
  model.num_blocks = 1 << 19;
  model.first_token_id = 300;
  for (int i = 0; i < 16; ++i) {  // more text than any window
    model.tokens.push_back(std::string(256 * 1024 - 1, 'x') + static_cast<char>('A' + i));
  }
  StartAndLoad(model);
  const auto endless = [](const std::string& id, int32_t prompt, bool output) {
    v1::GenerateRequest request = Request(prompt, 1'000'000);
    request.set_request_id(id);
    request.mutable_output()->set_text(output);
    request.mutable_output()->set_token_ids(output);
    return request;
  };
  v1::GenerateRequest waiting = endless("waiting", 9, false);
  waiting.mutable_token_ids()->add_ids(10);
  waiting.set_priority(-3);
  std::map<std::string, v1::RequestInfo> seen;
  const auto list = [&] {
    grpc::ClientContext context;
    v1::ListRequestsResponse response;
    EXPECT_TRUE(admin_->ListRequests(&context, {}, &response).ok());
    seen.clear();
    for (const v1::RequestInfo& info : response.requests()) seen[info.request_id()] = info;
  };
  grpc::ClientContext contexts[3];
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>> readers;
  readers.push_back(stub_->Generate(&contexts[0], endless("paused", 299, true)));
  while (seen["paused"].state() != v1::REQUEST_STATE_PAUSED) list();
  readers.push_back(stub_->Generate(&contexts[1], endless("running", 1, false)));
  readers.push_back(stub_->Generate(&contexts[2], waiting));
  while (seen["running"].completion_tokens() == 0 || seen["waiting"].blocks() > 0 ||
         seen["running"].state() != v1::REQUEST_STATE_RUNNING ||
         seen["waiting"].state() != v1::REQUEST_STATE_WAITING) {
    list();
  }
  EXPECT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen["paused"].state(), v1::REQUEST_STATE_PAUSED);
  EXPECT_GT(seen["paused"].completion_tokens(), 0);
  EXPECT_EQ(seen["paused"].blocks(), 0) << "it gave way to the one that runs";
  EXPECT_EQ(seen["running"].prompt_tokens(), 1);
  EXPECT_GT(seen["running"].blocks(), 0);
  EXPECT_EQ(seen["waiting"].prompt_tokens(), 2);
  EXPECT_EQ(seen["waiting"].priority(), -3);
  EXPECT_GE(seen["paused"].age_seconds(), seen["running"].age_seconds());
  for (size_t i = 0; i < readers.size(); ++i) {
    contexts[i].TryCancel();
    v1::GenerateResponse response;
    while (readers[i]->Read(&response)) {
    }
    EXPECT_EQ(readers[i]->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
}

TEST_F(GrpcServerTest, ReflectionIsThereOnlyWhenAskedFor) {
  const std::string path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  GrpcServerOptions options;
  options.reflection = false;
  StartServer(options);
  EXPECT_EQ(SendRaw(path, "").error_code(), grpc::StatusCode::UNIMPLEMENTED);
  server_->Shutdown(kPatience);
  server_.reset();
  options.reflection = true;
  StartServer(options);
  EXPECT_NE(SendRaw(path, "").error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(GrpcServerTest, AFullTokenizerQueueSaysWhenToComeBack) {
  GrpcServerOptions options;
  options.max_tokenizer_jobs = 0;
  StartServer(options);
  Load();
  v1::GenerateRequest request;
  request.set_text("a");
  const Answer answer = Generate(request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(answer.status.error_details()));
  ASSERT_EQ(details.details_size(), 1);
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(details.details(0).UnpackTo(&retry));
  EXPECT_GT(retry.retry_delay().seconds(), 0);
}

TEST_F(GrpcServerTest, DrainingAnswersTextThatIsNotTokenizedYetAndEverythingAfterIt) {
  StartAndLoad();
  server_->StartDraining();
  grpc::ClientContext context;
  v1::TokenizeRequest request;
  request.set_text("a");
  v1::TokenizeResponse response;
  EXPECT_EQ(stub_->Tokenize(&context, request, &response).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  v1::GenerateRequest generate;
  generate.set_text("a");
  EXPECT_EQ(Generate(generate).status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

// A drain waits for these: the engine is done with the request, its client is not.
TEST_F(GrpcServerTest, Case_054_ARequestIsOpenUntilItsClientHasEverything) {
  constexpr int kTokens = 16;
  constexpr size_t kTextBytes = 256 * 1024;  // of each token: more than any window
  FakeModelOptions model;
  model.first_token_id = 300;
  for (int i = 0; i < kTokens; ++i) {
    model.tokens.push_back(std::string(kTextBytes - 1, 'x') + static_cast<char>('A' + i));
  }
  StartAndLoad(model);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1024);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  const auto slow = v1::Inference::NewStub(
      grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  auto reader = slow->Generate(&context, Request(299, kTokens));
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  ASSERT_TRUE(response.has_started());
  while (observer_.num_ended() == 0) std::this_thread::yield();
  EXPECT_EQ(server_->num_open_requests(), 1);
  size_t text_bytes = 0;
  while (reader->Read(&response)) text_bytes += response.chunk().text().size();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(text_bytes, kTokens * kTextBytes);
  while (server_->num_open_requests() > 0) std::this_thread::yield();
}

TEST_F(GrpcServerTest, ShutdownCutsWhatDoesNotEnd) {
  StartServer();
  served_ = std::make_unique<ServedFake>(FakeModelOptions(), clock_, server_->outbox());
  server_->SetServing(served_->fake.model, *served_->engine);  // its thread never starts
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, Request(1, 5));
  while (server_->num_open_requests() == 0) std::this_thread::yield();
  std::thread shutdown([&] { server_->Shutdown(Duration::zero()); });
  v1::GenerateResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_FALSE(reader->Finish().ok());
  shutdown.join();
  EXPECT_EQ(server_->num_open_requests(), 0);
  served_.reset();
  server_.reset();
}

TEST_F(GrpcServerTest, Fault_S6_DeadlinesFollowTheMonotonicClockAlone) {
  FakeClock clock;  // our monotonic time moves by hand, the wall clock by itself
  GrpcServerOptions options;
  options.listen = "127.0.0.1:0";
  auto server = GrpcServer::Start(options, ServerInfo(), clock, observer_, lifecycle_);
  ASSERT_TRUE(server.ok());
  ServedFake served(FakeModelOptions(), clock, (*server)->outbox());
  (*server)->SetServing(served.fake.model, *served.engine);
  auto stub = v1::Inference::NewStub(
      grpc::CreateChannel((*server)->address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::hours(1));
  auto reader = stub->Generate(&context, Request(1, 5));
  while ((*server)->num_open_requests() == 0) std::this_thread::yield();
  clock.Advance(std::chrono::hours(2));
  served.engine->Start();
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(observer_.outcome(RequestOutcome::kDeadline), 1);
  EXPECT_GE(observer_.counts().smallest_seconds, 0.0);
  served.engine->Stop();
  (*server)->Shutdown(kPatience);
}

TEST_F(GrpcServerTest, EveryRpcIsCountedOnceWithTheCodeTheClientSaw) {
  StartAndLoad();
  std::map<int, int> seen;
  for (int i = 0; i < 60; ++i) {
    v1::GenerateRequest request = Request(i % 3 == 0 ? 600 : 10, 3);
    if (i % 5 == 0) request.set_model("other");
    ++seen[Generate(request).status.error_code()];
  }
  for (const auto& [code, count] : seen) {
    const auto rpcs = observer_.counts().rpcs;
    EXPECT_EQ(rpcs.at({"longspan.v1.Inference/Generate", code}), count) << code;
  }
}

}  // namespace
}  // namespace longspan
