// The handlers of longspan.v1.Inference: parse bytes, check, answer, or hand over to the tokenizer
// thread when that may take more than a moment. What a Generate call does after its submission is
// generate_call.cc's.
#include "server/inference_service.h"

#include <fmt/format.h>

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "core/log.h"
#include "engine/engine.h"
#include "server/error_details.h"
#include "server/generate_reactor.h"
#include "tokenizer/tokenizer.h"

namespace longspan {
namespace {

// Parsing and checking so many bytes takes some 0.2 ms.
constexpr size_t kMaxInlineBytes = 32 * 1024;

constexpr int64_t kMaxTokenizedTokens = 1'000'000;  // so that a reply stays under 4 MB

const char* ArchitectureName(Architecture architecture) {
  switch (architecture) {
    case Architecture::kLlama:
      return "llama";
    case Architecture::kMistral:
      return "mistral";
    case Architecture::kQwen2:
      return "qwen2";
    case Architecture::kQwen3:
      return "qwen3";
  }
  return "";
}

v1::ServerState ToProto(ServerPhase phase) {
  switch (phase) {
    case ServerPhase::kLoading:
      return v1::SERVER_STATE_LOADING;
    case ServerPhase::kServing:
      return v1::SERVER_STATE_SERVING;
    case ServerPhase::kDraining:
      return v1::SERVER_STATE_DRAINING;
    case ServerPhase::kFailed:
      return v1::SERVER_STATE_FAILED;
  }
  return v1::SERVER_STATE_UNSPECIFIED;
}

// Why a tokenizer thread did not take a job.
grpc::Status NotPosted(ServerPhase phase, const TokenizerThread& tokenizer) {
  if (phase > ServerPhase::kServing) return CheckServing(phase);
  return ResourceExhausted(
      "queue: too many requests wait to be tokenized",
      tokenizer.estimated_delay_seconds().value_or(kRetrySecondsBeforeMeasurements));
}

// Before a text is made that no reply can hold; reads `cancelled` on the way.
grpc::Status CheckTextBytes(const Tokenizer& tokenizer, std::span<const TokenId> ids, bool skip,
                            const std::atomic<bool>& cancelled) {
  constexpr size_t kIdsPerLook = 4096;
  std::string bytes;
  size_t total = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i % kIdsPerLook == 0 && cancelled.load()) {
      return {grpc::StatusCode::CANCELLED, "token_ids: cancelled"};
    }
    bytes.clear();
    tokenizer.AppendBytes(ids[i], skip, bytes);
    total += bytes.size();
    if (total > kMaxReplyBytes) {
      return {grpc::StatusCode::RESOURCE_EXHAUSTED,
              fmt::format("token_ids: a text of more than {} bytes (limit of a reply), after {} of "
                          "{} ids",
                          kMaxReplyBytes, i + 1, ids.size())};
    }
  }
  return grpc::Status::OK;
}

grpc::Status NoTokenizer() {
  return {grpc::StatusCode::FAILED_PRECONDITION, "the model has no tokenizer"};
}

v1::GetModelInfoResponse ModelInfo(const ServedModel& model) {
  const ModelConfig& config = model.config;
  v1::GetModelInfoResponse out;
  out.set_name(model.name);
  out.set_architecture(ArchitectureName(config.architecture));
  out.set_vocab_size(config.vocab_size);
  out.set_context_length(model.max_model_len);
  out.set_num_layers(config.num_layers);
  out.set_num_attention_heads(config.num_q_heads);
  out.set_num_kv_heads(config.num_kv_heads);
  out.set_head_dim(config.head_dim);
  out.set_dtype(config.weight_format.empty() ? std::string(DTypeName(config.weight_dtype))
                                             : config.weight_format);
  out.set_kv_dtype(std::string(DTypeName(model.kv_dtype)));
  out.set_kv_bytes_per_token(model.kv_bytes_per_token);
  for (const TokenId id : config.eos_token_ids) out.add_eos_token_ids(ToInt(id));
  if (config.bos_token_id != kInvalidToken) out.set_bos_token_id(ToInt(config.bos_token_id));
  out.set_chat_template(config.chat_template);
  if (model.tokenizer != nullptr) out.set_tokenizer_kind(std::string(model.tokenizer->kind()));
  return out;
}

v1::GetServerInfoResponse DescribeServer(const ServerContext& context) {
  const ServerInfo& info = context.info();
  v1::GetServerInfoResponse out;
  out.set_version(info.version);
  out.set_commit(info.commit);
  for (const DeviceInfo& device : info.devices) {
    v1::Device& into = *out.add_devices();
    into.set_name(device.name);
    into.set_description(device.description);
    into.set_memory_total_bytes(device.memory_total_bytes);
    if (device.memory_used_bytes) into.set_memory_used_bytes(device.memory_used_bytes());
  }
  for (const auto& [name, value] : info.flags) (*out.mutable_flags())[name] = value;
  if (const ServedModel* model = context.model(); model != nullptr) {
    for (const auto& [name, value] : model->chosen_flags) (*out.mutable_flags())[name] = value;
  }
  out.set_uptime_seconds(Seconds(context.clock().Now() - info.start_time));
  out.set_state(ToProto(context.phase()));
  return out;
}

v1::GetLoadResponse Load(const Engine& engine) {
  const EngineStats stats = engine.stats();
  v1::GetLoadResponse out;
  out.set_running_requests(stats.requests_running + stats.requests_paused);
  out.set_waiting_requests(stats.requests_waiting);
  out.set_waiting_tokens(stats.waiting_tokens);
  out.set_total_blocks(stats.blocks_total);
  out.set_used_blocks(stats.blocks_held);
  out.set_evictable_blocks(stats.blocks_evictable);
  out.set_tokens_per_second(stats.tokens_per_second);
  if (const std::optional<double> delay = engine.estimated_queue_delay_seconds()) {
    out.set_estimated_queue_delay_seconds(*delay);
  }
  return out;
}

}  // namespace

grpc::Status CheckServing(ServerPhase phase) {
  switch (phase) {
    case ServerPhase::kLoading:
      return {grpc::StatusCode::UNAVAILABLE, "the model is loading"};
    case ServerPhase::kServing:
      return grpc::Status::OK;
    case ServerPhase::kDraining:
      return {grpc::StatusCode::UNAVAILABLE, "the server is draining"};
    case ServerPhase::kFailed:
      return {grpc::StatusCode::UNAVAILABLE, "the server has failed and is about to exit"};
  }
  return {grpc::StatusCode::UNAVAILABLE, "not serving"};
}

InferenceService::InferenceService(ServerContext& context, RequestRegistry& registry,
                                   TokenizerThreads& tokenizer, const InferenceLimits& limits)
    : context_(context), registry_(registry), tokenizer_(tokenizer), limits_(limits) {}

// ---- Generate ---------------------------------------------------------------------------------

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  const auto call = std::make_shared<GenerateCall>(
      context_, registry_, TimesOf(*context, context_.clock()), limits_.max_pending_tokens);
  call->SetTrace(TraceParentOf(*context));
  auto* reactor = new GenerateReactor(call, num_open_calls_);
  grpc::Status status = CheckMetadata(*context, limits_.max_metadata_bytes);
  if (status.ok()) status = CheckServing(context_.phase());
  if (status.ok()) {
    Receive(*request, call);
  } else {
    call->Refuse(status);
  }
  return reactor;
}

void InferenceService::Receive(const grpc::ByteBuffer& bytes, const CallPtr& call) {
  if (bytes.Length() <= kMaxInlineBytes) return Parse(bytes, call, false);
  Post(static_cast<int64_t>(bytes.Length()), call,
       [this, bytes, call] { Parse(bytes, call, true); });
}

void InferenceService::Parse(const grpc::ByteBuffer& bytes, const CallPtr& call,
                             bool on_tokenizer_thread) {
  auto request = std::make_shared<v1::GenerateRequest>();
  if (grpc::Status parsed = ParseMessage(bytes, *request); !parsed.ok()) {
    return call->Refuse(parsed);
  }
  // An id that is not acceptable is refused with the other fields, not looked up.
  if (IsPrintableId(request->request_id()) || !request->has_request_id()) {
    if (!call->TakeId(request->request_id())) {
      return call->Refuse(
          {grpc::StatusCode::ALREADY_EXISTS, "request_id: in use (limit: one request at a time)"});
    }
  }
  if (on_tokenizer_thread || !RequestValidator::NeedsTokenizer(*request)) {
    return ValidateAndSubmit(*request, call);
  }
  Post(static_cast<int64_t>(bytes.Length()), call,
       [this, request, call] { ValidateAndSubmit(*request, call); });
}

void InferenceService::ValidateAndSubmit(const v1::GenerateRequest& request, const CallPtr& call) {
  const RequestValidator validator(*context_.model());
  ValidatedRequest validated;
  const grpc::Status status = validator.Build(request, DrawSeed(), call->cancelled(), validated);
  if (!status.ok()) return call->Refuse(status);
  call->Submit(std::move(validated));
}

void InferenceService::Post(int64_t bytes, const CallPtr& call, std::function<void()> work) {
  TokenizerThread& thread = tokenizer_.For(bytes);
  const bool posted = thread.TryPost(bytes, [call, work = std::move(work)](bool stopping) {
    if (call->cancelled()->load()) return;
    if (stopping) return call->RefuseUnlessSubmitted(CheckServing(ServerPhase::kDraining));
    work();
  });
  if (!posted) call->Refuse(NotPosted(context_.phase(), thread));
}

// ---- Unary methods ----------------------------------------------------------------------------

grpc::ServerUnaryReactor* InferenceService::Abort(grpc::CallbackServerContext* context,
                                                  const grpc::ByteBuffer* request,
                                                  grpc::ByteBuffer* reply) {
  return HandleUnary<v1::AbortRequest>(
      context_.observer(), "longspan.v1.Inference/Abort", limits_.max_metadata_bytes, *context,
      *request, reply,
      [this](const v1::AbortRequest& abort, const std::shared_ptr<UnaryCall>& call) {
        if (grpc::Status checked = CheckRequest(abort); !checked.ok()) return call->Fail(checked);
        const CallPtr found = registry_.Find(abort.request_id());
        if (found != nullptr) found->Abort();
        v1::AbortResponse response;
        response.set_found(found != nullptr);
        call->Reply(response);
      });
}

template <typename Request, typename Work>
grpc::ServerUnaryReactor* InferenceService::HandleOnTokenizerThread(
    const char* method, const grpc::CallbackServerContext& context, const grpc::ByteBuffer& bytes,
    grpc::ByteBuffer* reply, Work work) {
  const std::shared_ptr<UnaryCall> call = UnaryCall::Create(context_.observer(), method, reply);
  const ServedModel* model = context_.model();
  grpc::Status status = CheckMetadata(context, limits_.max_metadata_bytes);
  if (status.ok() && model == nullptr) status = CheckServing(ServerPhase::kLoading);
  if (status.ok() && model->tokenizer == nullptr) status = NoTokenizer();
  if (!status.ok()) {
    call->Fail(status);
    return call.get();
  }
  const auto job = [call, bytes, model, work](bool stopping) {
    if (call->cancelled()->load()) return;
    if (stopping) return call->Fail(CheckServing(ServerPhase::kDraining));
    Request request;
    grpc::Status checked = ParseMessage(bytes, request);
    if (checked.ok()) checked = RequestValidator(*model).Check(request);
    if (!checked.ok()) return call->Fail(checked);
    work(request, *model, *call);
  };
  const auto num_bytes = static_cast<int64_t>(bytes.Length());
  TokenizerThread& thread = tokenizer_.For(num_bytes);
  if (!thread.TryPost(num_bytes, job)) {
    call->Fail(NotPosted(context_.phase(), thread));
  }
  return call.get();
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* reply) {
  return HandleOnTokenizerThread<v1::TokenizeRequest>(
      "longspan.v1.Inference/Tokenize", *context, *request, reply,
      [](const v1::TokenizeRequest& in, const ServedModel& model, UnaryCall& call) {
        EncodeOptions options;
        options.add_special_tokens = !in.has_add_special_tokens() || in.add_special_tokens();
        options.parse_special_tokens = in.parse_special_tokens();
        options.max_tokens = kMaxTokenizedTokens;
        const auto ids = model.tokenizer->Encode(in.text(), options, call.cancelled());
        if (absl::IsOutOfRange(ids.status())) {
          return call.Fail({grpc::StatusCode::RESOURCE_EXHAUSTED, StatusMessage(ids.status())});
        }
        if (!ids.ok()) return call.Fail(ToGrpcStatus(ids.status()));
        v1::TokenizeResponse response;
        response.mutable_token_ids()->Reserve(static_cast<int>(ids->size()));
        for (const TokenId id : *ids) response.add_token_ids(ToInt(id));
        call.Reply(response);
      });
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* reply) {
  return HandleOnTokenizerThread<v1::DetokenizeRequest>(
      "longspan.v1.Inference/Detokenize", *context, *request, reply,
      [](const v1::DetokenizeRequest& in, const ServedModel& model, UnaryCall& call) {
        std::vector<TokenId> ids;
        ids.reserve(static_cast<size_t>(in.token_ids_size()));
        for (const int32_t id : in.token_ids()) ids.push_back(TokenId{id});
        const bool skip = !in.has_skip_special_tokens() || in.skip_special_tokens();
        if (grpc::Status status = CheckTextBytes(*model.tokenizer, ids, skip, *call.cancelled());
            !status.ok()) {
          return call.Fail(status);
        }
        v1::DetokenizeResponse response;
        response.set_text(model.tokenizer->Decode(ids, skip));
        call.Reply(response);
      });
}

grpc::ServerUnaryReactor* InferenceService::GetModelInfo(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request,
                                                         grpc::ByteBuffer* reply) {
  return HandleUnary<v1::GetModelInfoRequest>(
      context_.observer(), "longspan.v1.Inference/GetModelInfo", limits_.max_metadata_bytes,
      *context, *request, reply,
      [this](const v1::GetModelInfoRequest&, const std::shared_ptr<UnaryCall>& call) {
        const ServedModel* model = context_.model();
        if (model == nullptr) return call->Fail(CheckServing(ServerPhase::kLoading));
        call->Reply(ModelInfo(*model));
      });
}

grpc::ServerUnaryReactor* InferenceService::GetServerInfo(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* request,
                                                          grpc::ByteBuffer* reply) {
  return HandleUnary<v1::GetServerInfoRequest>(
      context_.observer(), "longspan.v1.Inference/GetServerInfo", limits_.max_metadata_bytes,
      *context, *request, reply,
      [this](const v1::GetServerInfoRequest&, const std::shared_ptr<UnaryCall>& call) {
        call->Reply(DescribeServer(context_));
      });
}

grpc::ServerUnaryReactor* InferenceService::GetLoad(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* reply) {
  return HandleUnary<v1::GetLoadRequest>(
      context_.observer(), "longspan.v1.Inference/GetLoad", limits_.max_metadata_bytes, *context,
      *request, reply, [this](const v1::GetLoadRequest&, const std::shared_ptr<UnaryCall>& call) {
        const Engine* engine = context_.engine();
        if (engine == nullptr) return call->Fail(CheckServing(ServerPhase::kLoading));
        call->Reply(Load(*engine));
      });
}

}  // namespace longspan
