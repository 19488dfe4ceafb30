// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/core/collective_fingerprint.hpp"

#include "tests/testing.hpp"

using namespace accelerate::comm;

TEST_CASE("a fingerprint survives a round trip") {
  CollectiveFingerprint signature = fingerprint_of(Operation::reduce_scatter, at::empty({3, 0, 7}, at::kBFloat16));
  signature.sequence = 1'000'000'007;
  signature.root = 3;
  signature.reduce = 2;
  signature.into_given = true;
  CHECK((decode(encode(signature)) == signature));
  const CollectiveFingerprint barrier{.operation = Operation::barrier, .sequence = 9};
  CHECK((decode(encode(barrier)) == barrier));
  CHECK(describe_fingerprint(signature) == "[3, 0, 7] bfloat16");
  CHECK(describe_fingerprint(fingerprint_of(Operation::send, at::ones({}, at::kBool))) == "[] bool");
  CHECK(describe_fingerprint(barrier) == "no tensor");
}
