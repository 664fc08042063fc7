#include "server/bind_address.h"

#include <gtest/gtest.h>

namespace longspan {
namespace {

TEST(BindAddress, SyntaxNamesTheFlag) {
  for (const char* good : {"127.0.0.1:0", "localhost:50051", "[::1]:1", "unix:/run/x.sock"}) {
    EXPECT_TRUE(CheckAddressSyntax("--listen", good).ok()) << good;
  }
  for (const std::string& bad :
       {std::string(""), std::string("50051"), std::string(":1"), std::string("h:"),
        std::string("h:65536"), std::string("h:-1"), std::string("h:1x"), std::string("unix:"),
        "unix:" + std::string(108, 'a')}) {
    const Status status = CheckAddressSyntax("--listen", bad);
    EXPECT_FALSE(status.ok()) << bad;
    EXPECT_EQ(StatusMessage(status).rfind("--listen: ", 0), 0u);
  }
}

TEST(BindAddress, Fault_T5_OtherAddressesNeedInsecureBind) {
  for (const char* local : {"127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "unix:/x"}) {
    EXPECT_TRUE(CheckBindPolicy("--listen", local, false).ok()) << local;
  }
  for (const char* open :
       {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1", "127.example.org:1", "[fe80::1]:1"}) {
    EXPECT_FALSE(CheckBindPolicy("--listen", open, false).ok()) << open;
    EXPECT_TRUE(CheckBindPolicy("--listen", open, true).ok()) << open;
  }
}

}  // namespace
}  // namespace longspan
