// The life of the process on a tiny model, without ports: sockets in a folder of the test.
#include "server/application.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

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
