// Takes a batch of events, hands each to its call, then flushes each touched call once: tokens of
// one step for one stream leave as one message.
#include "server/output_thread.h"

#include <algorithm>
#include <vector>

#include "server/generate_call.h"

namespace longspan {

OutputThread::OutputThread(Outbox& outbox) : outbox_(outbox), thread_([this] { Loop(); }) {}

OutputThread::~OutputThread() {
  outbox_.Close();
  thread_.join();
}

void OutputThread::Loop() {
  std::vector<StreamEvent> events;
  std::vector<GenerateCall*> touched;
  while (outbox_.Pop(events)) {
    for (StreamEvent& event : events) {
      auto* call = static_cast<GenerateCall*>(event.stream.get());
      call->OnEvent(event);
      touched.push_back(call);
    }
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    for (GenerateCall* call : touched) call->Flush();
    touched.clear();
    events.clear();  // calls that have ended are freed now, not with the next batch
  }
}

}  // namespace longspan
