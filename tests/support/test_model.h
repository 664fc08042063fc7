// Where the real model's file is: tests that need it skip when it is absent.
#pragma once

#include <cstdlib>
#include <string>

namespace longspan::testing {

// The file named by LONGSPAN_TEST_MODEL, else the one that scripts/fetch-model puts in place.
inline std::string TestModelPath() {
  if (const char* path = std::getenv("LONGSPAN_TEST_MODEL")) return path;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string base = cache != nullptr ? cache : std::string(home ? home : "") + "/.cache";
  return base + "/longspan/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

}  // namespace longspan::testing
