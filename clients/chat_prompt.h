// One user turn as a prompt, for models whose chat template is ChatML. Other templates are Jinja
// programs: the Python client renders those.
#pragma once

#include <optional>
#include <string>

namespace longspan {

// chat_template: as GetModelInfo gives it. nullopt when it is not ChatML. An empty system message
// is left out.
std::optional<std::string> ChatMlPrompt(const std::string& chat_template, const std::string& system,
                                        const std::string& user);

}  // namespace longspan
