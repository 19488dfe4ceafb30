// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/core/collective_fingerprint.hpp"

#include <array>

#include "accelerate/comm/operation_item.hpp"
#include "tests/testing.hpp"

using namespace accelerate::comm;

TEST_CASE("a fingerprint survives a round trip") {
  CollectiveFingerprint signature = fingerprint_of(Operation::reduce_scatter, at::empty({3, 0, 7}, at::kBFloat16));
  signature.sequence = 1'000'000'007;
  signature.root = 3;
  signature.reduce = 2;
  signature.into_given = true;
  signature.item = 5;
  CHECK((decode(encode(signature)) == signature));
  const CollectiveFingerprint barrier{.operation = Operation::barrier, .sequence = 9};
  CHECK((decode(encode(barrier)) == barrier));
  CHECK(describe_fingerprint(signature) == "[3, 0, 7] bfloat16");
  CHECK(describe_fingerprint(fingerprint_of(Operation::send, at::ones({}, at::kBool))) == "[] bool");
  CHECK(describe_fingerprint(barrier) == "no tensor");
}

TEST_CASE("a fingerprint contains the item of the thread, and another item is an error") {
  const auto fingerprint = [] { return fingerprint_of(Operation::all_gather, at::empty({4})); };
  std::array<CollectiveFingerprint, 2> of_ranks{fingerprint(), {}};
  CHECK(of_ranks[0].item == -1);
  {
    const OperationItem outer(3);
    const OperationItem inner(4);
    of_ranks[1] = fingerprint();
    CHECK(of_ranks[1].item == 4);
  }
  CHECK(item_of_thread() == -1);
  const std::array<int64_t, 2> job_ranks{0, 7};
  CHECK(disagreement(of_ranks, 0, Agreement::whole_shape, job_ranks) ==
        "this rank transfers no item, rank 7 transfers item 4; all ranks must call the same operations in the same "
        "order.");
  of_ranks[0].item = 4;
  CHECK_FALSE(disagreement(of_ranks, 0, Agreement::whole_shape, job_ranks));
}
