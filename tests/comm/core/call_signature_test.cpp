// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/core/call_signature.hpp"

#include "tests/testing.hpp"

using namespace accelerate::comm;

TEST_CASE("a signature survives its journey") {
  CallSignature signature = signature_of(Operation::reduce_scatter, at::empty({3, 0, 7}, at::kBFloat16));
  signature.sequence = 1'000'000'007;
  signature.root = 3;
  signature.reduce = 2;
  signature.into_given = true;
  CHECK((decode(encode(signature)) == signature));
  const CallSignature barrier{.operation = Operation::barrier, .sequence = 9};
  CHECK((decode(encode(barrier)) == barrier));
  CHECK(describe(signature) == "[3, 0, 7] bfloat16");
  CHECK(describe(signature_of(Operation::send, at::ones({}, at::kBool))) == "[] bool");
  CHECK(describe(barrier) == "no tensor");
}
