// The handlers of longspan.v1.Admin. Questions to the engine are answered later on its thread;
// listing joins the engine's sequences with the registry's request ids.
#include "server/admin_service.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/log.h"
#include "engine/engine.h"
#include "server/error_details.h"
#include "server/generate_call.h"
#include "server/inference_service.h"
#include "server/request_validator.h"

namespace longspan {
namespace {

using CallPtr = std::shared_ptr<GenerateCall>;

std::string LevelName(spdlog::level::level_enum level) {
  const auto name = spdlog::level::to_string_view(level);
  const std::string text(name.data(), name.size());
  return text == "warning" ? "warn" : text;
}

v1::RequestState ToProto(SequenceInfo::State state) {
  switch (state) {
    case SequenceInfo::State::kWaiting:
      return v1::REQUEST_STATE_WAITING;
    case SequenceInfo::State::kRunning:
      return v1::REQUEST_STATE_RUNNING;
    case SequenceInfo::State::kPaused:
      return v1::REQUEST_STATE_PAUSED;
  }
  return v1::REQUEST_STATE_UNSPECIFIED;
}

// The engine knows sequences, the registry requests: joined by the sequence ids of each call. A
// call that the engine does not know yet is being prepared and shows as waiting.
v1::ListRequestsResponse Join(std::vector<CallPtr> calls, const std::vector<SequenceInfo>& infos,
                              TimePoint now) {
  std::sort(calls.begin(), calls.end(),
            [](const CallPtr& a, const CallPtr& b) { return a->arrival() < b->arrival(); });
  std::unordered_map<int64_t, const SequenceInfo*> by_id;
  for (const SequenceInfo& info : infos) by_id.emplace(ToInt(info.id), &info);
  v1::ListRequestsResponse out;
  for (const CallPtr& call : calls) {
    const GenerateCall::Submitted submitted = call->submitted();
    for (int32_t i = 0; i < std::max(submitted.n, 1); ++i) {
      const auto found = by_id.find(ToInt(submitted.first) + i);
      if (submitted.n > 0 && found == by_id.end()) continue;  // it has just ended
      v1::RequestInfo& into = *out.add_requests();
      into.set_request_id(call->id());
      into.set_index(i);
      into.set_state(v1::REQUEST_STATE_WAITING);
      into.set_age_seconds(Seconds(now - call->arrival()));
      if (submitted.n == 0) continue;
      const SequenceInfo& info = *found->second;
      into.set_state(ToProto(info.state));
      into.set_prompt_tokens(info.num_prompt_tokens);
      into.set_completion_tokens(info.num_completion_tokens);
      into.set_blocks(info.num_blocks);
      into.set_priority(info.priority);
    }
  }
  return out;
}

}  // namespace

AdminService::AdminService(ServerContext& context, RequestRegistry& registry,
                           int64_t max_metadata_bytes)
    : context_(context), registry_(registry), max_metadata_bytes_(max_metadata_bytes) {}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context,
                                              const grpc::ByteBuffer* request,
                                              grpc::ByteBuffer* reply) {
  return HandleUnary<v1::DrainRequest>(
      context_.observer(), "longspan.v1.Admin/Drain", max_metadata_bytes_, *context, *request,
      reply, [this](const v1::DrainRequest& drain, const std::shared_ptr<UnaryCall>& call) {
        if (grpc::Status checked = CheckRequest(drain); !checked.ok()) return call->Fail(checked);
        v1::DrainResponse response;
        response.set_requests(registry_.size());
        std::optional<Duration> timeout;
        if (drain.has_timeout_seconds()) {
          timeout = std::chrono::duration_cast<Duration>(
              std::chrono::duration<double>(drain.timeout_seconds()));
        }
        context_.lifecycle().RequestDrain(timeout);
        call->Reply(response);
      });
}

grpc::ServerUnaryReactor* AdminService::ResetPrefixCache(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request,
                                                         grpc::ByteBuffer* reply) {
  return HandleUnary<v1::ResetPrefixCacheRequest>(
      context_.observer(), "longspan.v1.Admin/ResetPrefixCache", max_metadata_bytes_, *context,
      *request, reply,
      [this](const v1::ResetPrefixCacheRequest&, const std::shared_ptr<UnaryCall>& call) {
        Engine* engine = context_.engine();
        if (engine == nullptr) return call->Fail(CheckServing(ServerPhase::kLoading));
        engine->ResetPrefixCache([call](int32_t blocks) {
          v1::ResetPrefixCacheResponse response;
          response.set_blocks(blocks);
          call->Reply(response);
        });
      });
}

grpc::ServerUnaryReactor* AdminService::SetLogLevel(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* reply) {
  return HandleUnary<v1::SetLogLevelRequest>(
      context_.observer(), "longspan.v1.Admin/SetLogLevel", max_metadata_bytes_, *context, *request,
      reply, [](const v1::SetLogLevelRequest& in, const std::shared_ptr<UnaryCall>& call) {
        grpc::Status checked = CheckRequest(in);
        spdlog::level::level_enum level = spdlog::level::info;
        if (checked.ok() && !ParseLogLevel(in.level(), level)) {
          Violations violations;
          violations.Add("level", "not a log level (limit: trace, debug, info, warn, error, off)");
          checked = violations.ToStatus();
        }
        if (!checked.ok()) return call->Fail(checked);
        v1::SetLogLevelResponse response;
        response.set_previous_level(LevelName(spdlog::get_level()));
        spdlog::set_level(level);
        call->Reply(response);
      });
}

grpc::ServerUnaryReactor* AdminService::ListRequests(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* reply) {
  return HandleUnary<v1::ListRequestsRequest>(
      context_.observer(), "longspan.v1.Admin/ListRequests", max_metadata_bytes_, *context,
      *request, reply,
      [this](const v1::ListRequestsRequest&, const std::shared_ptr<UnaryCall>& call) {
        Engine* engine = context_.engine();
        if (engine == nullptr) return call->Reply(v1::ListRequestsResponse());
        engine->List([this, call](const std::vector<SequenceInfo>& infos) {
          call->Reply(Join(registry_.All(), infos, context_.clock().Now()));
        });
      });
}

}  // namespace longspan
