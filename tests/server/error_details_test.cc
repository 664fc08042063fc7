// Errors as they leave: bounded, decodable with the public messages, free of what a caller sent.
#include "server/error_details.h"

#include <gtest/gtest.h>

#include <string>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace longspan {
namespace {

google::rpc::BadRequest BadRequestOf(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), static_cast<int>(status.error_code()));
  google::rpc::BadRequest bad_request;
  EXPECT_EQ(details.details_size(), 1);
  EXPECT_TRUE(details.details(0).UnpackTo(&bad_request));
  return bad_request;
}

TEST(Violations, NoneIsOk) { EXPECT_TRUE(Violations().ToStatus().ok()); }

TEST(Violations, MessageNamesTheFirstFieldAndDetailsNameAll) {
  Violations violations;
  violations.Add("n", "17 is out of range (limit [1, 16])");
  violations.Add("priority", "bad (limit)");
  const grpc::Status status = violations.ToStatus();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "n: 17 is out of range (limit [1, 16]); and 1 more");
  const google::rpc::BadRequest bad_request = BadRequestOf(status);
  ASSERT_EQ(bad_request.field_violations_size(), 2);
  EXPECT_EQ(bad_request.field_violations(1).field(), "priority");
}

TEST(Violations, StayUnder8KiBWhateverIsAdded) {
  Violations violations;
  for (int i = 0; i < 1000; ++i) {
    violations.Add(std::string(10'000, '\n'), std::string(10'000, '\x01'));
  }
  const grpc::Status status = violations.ToStatus();
  // Details travel as base64: four bytes for three.
  EXPECT_LT(status.error_message().size() + status.error_details().size() * 4 / 3, 8 * 1024);
  EXPECT_EQ(status.error_message().find('\n'), std::string::npos);
  EXPECT_EQ(violations.total(), 1000);
}

TEST(ToGrpcStatus, FieldProblemBecomesABadRequest) {
  const grpc::Status status = ToGrpcStatus(InvalidArgument("stop.strings: too many (limit 16)"));
  EXPECT_EQ(BadRequestOf(status).field_violations(0).field(), "stop.strings");
  EXPECT_EQ(status.error_message(), "stop.strings: too many (limit 16)");
}

TEST(ToGrpcStatus, KeepsOtherCodesAndCutsTheMessage) {
  const grpc::Status status =
      ToGrpcStatus(MakeStatus(absl::StatusCode::kUnavailable, "{}", std::string(100'000, 'x')));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_LE(status.error_message().size(), kMaxErrorMessageBytes + 3);
  EXPECT_TRUE(status.error_details().empty());
}

TEST(ResourceExhausted, CarriesARetryDelayWhenItIsKnown) {
  const grpc::Status known = ResourceExhausted("queue: full", 2.5);
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(known.error_details()));
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(details.details(0).UnpackTo(&retry));
  EXPECT_EQ(retry.retry_delay().seconds(), 2);
  EXPECT_EQ(retry.retry_delay().nanos(), 500'000'000);
  EXPECT_TRUE(ResourceExhausted("queue: full", std::nullopt).error_details().empty());
}

TEST(ResourceExhausted, RetryDelayIsNeverZeroNorForever) {
  for (const double seconds : {0.0, -1.0, 1e18}) {
    google::rpc::Status details;
    ASSERT_TRUE(details.ParseFromString(ResourceExhausted("queue", seconds).error_details()));
    google::rpc::RetryInfo retry;
    ASSERT_TRUE(details.details(0).UnpackTo(&retry));
    EXPECT_GT(retry.retry_delay().seconds() * 1e9 + retry.retry_delay().nanos(), 0);
    EXPECT_LE(retry.retry_delay().seconds(), 600);
  }
}

}  // namespace
}  // namespace longspan
