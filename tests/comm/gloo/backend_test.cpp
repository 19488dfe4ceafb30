// SPDX-License-Identifier: Apache-2.0
// Which messages pass through shared memory. Ranks are threads, which connect as processes do.
#include "tests/testing.hpp"
//
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "accelerate/comm/gloo/local_mailbox.hpp"
#include "accelerate/comm/group.hpp"
#include "tests/comm/connected_threads.hpp"
#include "tests/refusal.hpp"

// Named, because other files that are compiled together have functions of the same names.
namespace gloo_backend_testing {

using accelerate::comm::Group;
using accelerate::comm::LocalMailbox;

namespace {

void on_gloo_ranks(int64_t ranks, const std::function<void(const Group&)>& check) {
  testing::on_connected_threads(ranks, "gloo", check);
}

at::Tensor value_of(int64_t rank) { return torch::full({3}, rank, torch::kLong); }

// Rank 1 receives the value of rank 0 from any rank.
void exchange_with_any(const Group& group) {
  const auto c10d = group.process_group();
  std::vector<at::Tensor> tensors{group.rank() == 0 ? value_of(7) : torch::zeros({3}, torch::kLong)};
  if (group.rank() == 0) c10d->send(tensors, 1, 2)->wait();
  if (group.rank() != 1) return;
  c10d->recvAnysource(tensors, 2)->wait();
  CHECK(tensors[0].equal(value_of(7)));
}

}  // namespace

TEST_CASE("a receive from any rank is refused between ranks that share memory, and works over the network") {
  on_gloo_ranks(2, [](const Group& group) {
    std::vector<at::Tensor> tensors{torch::zeros({3}, torch::kLong)};
    CHECK(testing::refusal<c10::Error>([&] { group.process_group()->recvAnysource(tensors, 2); })
              .starts_with("ranks that share memory cannot receive from any rank: name the sender, or set "
                           "ACCELERATE_GLOO_SHARED_MEMORY=no"));
  });
  ::setenv("ACCELERATE_GLOO_SHARED_MEMORY", "no", 1);
  on_gloo_ranks(2, exchange_with_any);
  ::unsetenv("ACCELERATE_GLOO_SHARED_MEMORY");
}

TEST_CASE("17 ranks share memory for collectives, and exchange messages over the network") {
  const int64_t ranks = LocalMailbox::kMaxRanks + 1;
  on_gloo_ranks(ranks, [&](const Group& group) {
    const int64_t rank = group.rank(), after = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    at::Tensor sum = value_of(rank);
    group.all_reduce(sum);
    CHECK(sum.equal(value_of(ranks * (ranks - 1) / 2)));
    exchange_with_any(group);  // is refused by the mailbox
    const auto c10d = group.process_group();
    std::vector<at::Tensor> sent{value_of(rank)}, received{torch::zeros({3}, torch::kLong)};
    const auto send = c10d->send(sent, static_cast<int>(after), 0);
    c10d->recv(received, static_cast<int>(before), 0)->wait();
    send->wait();
    CHECK(received[0].equal(value_of(before)));
  });
}

}  // namespace gloo_backend_testing
