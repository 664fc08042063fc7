// ChatML is recognised by its two markers in the model's template; the template itself is not run.
// Anything else is nullopt, never a guess.
#include "clients/chat_prompt.h"

namespace longspan {

std::optional<std::string> ChatMlPrompt(const std::string& chat_template, const std::string& system,
                                        const std::string& user) {
  if (chat_template.find("<|im_start|>") == std::string::npos ||
      chat_template.find("<|im_end|>") == std::string::npos) {
    return std::nullopt;
  }
  std::string prompt;
  if (!system.empty()) prompt += "<|im_start|>system\n" + system + "<|im_end|>\n";
  prompt += "<|im_start|>user\n" + user + "<|im_end|>\n<|im_start|>assistant\n";
  return prompt;
}

}  // namespace longspan
