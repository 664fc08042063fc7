// The table of field limits: complete against the message, and right at every border.
#include "server/field_rules.h"

#include <gtest/gtest.h>

#include <vector>

#include "longspan/v1/inference.pb.h"

namespace longspan {
namespace {

using v1::DetokenizeRequest;

TEST(FieldTable, AFieldWithoutARowEndsTheProcess) {
  const std::vector<FieldRule> rules = {Any("model"), Any("skip_special_tokens")};
  EXPECT_DEATH(FieldTable(*DetokenizeRequest::descriptor(), rules), "no row for field token_ids");
}

TEST(FieldTable, ARowWithoutAFieldEndsTheProcess) {
  const std::vector<FieldRule> rules = {Any("model"), Any("skip_special_tokens"),
                                        TokenIdList("token_ids", 4), Any("nonsense")};
  EXPECT_DEATH(FieldTable(*DetokenizeRequest::descriptor(), rules), "nonsense");
}

TEST(FieldTable, ListsAreCountedBeforeTheirItemsAreLookedAt) {
  const std::vector<FieldRule> rules = {Any("model"), Any("skip_special_tokens"),
                                        TokenIdList("token_ids", 3)};
  const FieldTable table(*DetokenizeRequest::descriptor(), rules);
  DetokenizeRequest request;
  for (const int32_t id : {0, 9, 10}) request.add_token_ids(id);
  Violations at_limit;
  table.Check(request, 11, at_limit);
  EXPECT_TRUE(at_limit.empty());

  Violations bad_id;
  table.Check(request, 10, bad_id);
  EXPECT_EQ(bad_id.ToStatus().error_message(),
            "token_ids[2]: token id 10 is out of range (limit [0, 9])");

  request.add_token_ids(-1);
  Violations too_many;
  table.Check(request, 11, too_many);
  EXPECT_EQ(too_many.ToStatus().error_message(), "token_ids: has 4 entries (limit 3)");
}

TEST(FieldTable, UnsetFieldsAreNotChecked) {
  const std::vector<FieldRule> rules = {Text("model", 1, 2), Any("skip_special_tokens"),
                                        TokenIdList("token_ids", 3)};
  const FieldTable table(*DetokenizeRequest::descriptor(), rules);
  DetokenizeRequest request;
  Violations unset;
  table.Check(request, 8, unset);
  EXPECT_TRUE(unset.empty());
  request.set_model("");
  Violations empty;
  table.Check(request, 8, empty);
  EXPECT_EQ(empty.total(), 1);
}

}  // namespace
}  // namespace longspan
