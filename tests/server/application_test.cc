// The life of the process on a tiny model, without ports: sockets in a folder of the test.
#include "server/application.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <limits>
#include <string>
#include <utility>

#include "server/signals.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_models.h"

namespace longspan {
namespace {

using testing::TemporaryFolder;

ServerOptions TinyOptions(const TemporaryFolder& folder, const TemporaryFolder& model) {
  testing::WriteTinyModel(model, "toy_t");
  ServerOptions options;
  options.model = model.path();
  options.listen = "unix:" + folder.Path("listen");
  options.admin_listen = "unix:" + folder.Path("admin");
  options.metrics_listen = "off";
  options.ready_file = folder.Path("ready");
  options.log_level = "off";
  options.threads = 1;
  options.kv_blocks = 64;
  return options;
}

// A GGUF file with this tokenizer and a weight that is no number, which whoever reads it refuses.
std::string FileWithABadWeight(const TemporaryFolder& folder, const std::string& tokenizer) {
  constexpr uint32_t kInt32 = 5, kString = 8, kArray = 9;  // types of GGUF values
  using testing::Bytes;
  const ModelConfig config = testing::TinyConfig("llama_untied");
  testing::GgufSpec gguf = testing::TinyGguf(config);
  gguf.Set("tokenizer.ggml.model", kString, testing::GgufString(tokenizer));
  std::string types = Bytes(kInt32) + Bytes(static_cast<uint64_t>(config.vocab_size));
  for (int32_t id = 0; id < config.vocab_size; ++id) types += Bytes(int32_t{1});
  gguf.Raw("tokenizer.ggml.token_type", kArray, types);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  gguf.Find("token_embd.weight").data.replace(0, sizeof(nan), Bytes(nan));
  return folder.Write(tokenizer + ".gguf", gguf.Build());
}

TEST(Application, ADrainAskedForWhileLoadingNeverServes) {
  BlockSignals();
  const TemporaryFolder folder;
  const TemporaryFolder model;
  ServerOptions options = TinyOptions(folder, model);
  options.ready_file = folder.Path("absent/ready");  // serving would fail to write it
  Application application(options);
  application.RequestDrain(std::nullopt);
  EXPECT_EQ(application.Run(), ExitCode::kOk);
}

TEST(Application, ADrainAskedForWhileLoadingEndsItBeforeTheNextTensor) {
  BlockSignals();
  const TemporaryFolder folder;
  const TemporaryFolder model;
  ServerOptions options = TinyOptions(folder, model);
  options.model = FileWithABadWeight(folder, "gpt2");
  options.check_weights = true;
  EXPECT_EQ(Application(options).Run(), ExitCode::kFiles)
      << "without the drain it reads the weight";
  Application application(options);
  application.RequestDrain(Duration(std::chrono::hours(1)));
  EXPECT_EQ(application.Run(), ExitCode::kOk);
}

TEST(Application, AnUnknownTokenizerIsRefusedBeforeTheWeightsAreRead) {
  BlockSignals();
  const TemporaryFolder folder;
  const TemporaryFolder model;
  ServerOptions options = TinyOptions(folder, model);
  options.check_weights = true;
  for (const auto& [tokenizer, complaint] :
       {std::pair{"gpt2", "token_embd.weight"}, std::pair{"llama", "tokenizer: "}}) {
    options.model = FileWithABadWeight(folder, tokenizer);
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(Application(options).Run(), ExitCode::kFiles);
    EXPECT_NE(::testing::internal::GetCapturedStderr().find(complaint), std::string::npos)
        << tokenizer;
  }
}

TEST(Application, AStaleReadyFileGoesBeforeTheModelIsLoaded) {
  BlockSignals();
  const TemporaryFolder folder;
  const TemporaryFolder model;
  ServerOptions options = TinyOptions(folder, model);
  folder.Write("ready", "listen nowhere\n");
  options.model = folder.Path("no-model");
  Application application(options);
  EXPECT_EQ(application.Run(), ExitCode::kFiles);
  EXPECT_NE(::access(options.ready_file.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace longspan
