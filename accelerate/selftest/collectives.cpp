// SPDX-License-Identifier: Apache-2.0
#include "accelerate/selftest/checks.hpp"

namespace selftest {
namespace {

using accelerate::Accelerator;
using accelerate::comm::Group;
using accelerate::comm::ReduceOp;
using torch::arange;

at::TensorOptions on(const Accelerator& accelerator, at::ScalarType dtype) {
  return at::TensorOptions().dtype(dtype).device(accelerator.device());
}

// Rank r's: r+1 rows of 2 columns, 10 r, 10 r + 1, ...
at::Tensor ragged(const Accelerator& accelerator, int64_t rank) {
  return (arange(2 * (rank + 1)) + 10 * rank).reshape({rank + 1, 2}).to(on(accelerator, at::kFloat));
}

void all_reduce(Accelerator& accelerator) {
  const Group& group = accelerator.group();
  const int64_t ranks = group.size();
  for (const auto dtype : {at::kFloat, at::kDouble, at::kLong}) {
    const at::Tensor sum = arange(1000).to(on(accelerator, dtype)) + group.rank();
    group.all_reduce(sum);
    expect_equal(sum, (arange(1000) * ranks + ranks * (ranks - 1) / 2).to(dtype), "the sum");
  }
  const at::Tensor mean = at::full({3}, group.rank(), on(accelerator, at::kDouble));
  group.all_reduce(mean, ReduceOp::mean);
  expect_equal(mean, at::full({3}, static_cast<double>(ranks - 1) / 2, at::kDouble), "the mean");
  const at::Tensor most = at::full({3}, group.rank(), on(accelerator, at::kLong));
  group.all_reduce(most, ReduceOp::max);
  expect_equal(most, at::full({3}, ranks - 1, at::kLong), "the maximum");
}

void broadcast(Accelerator& accelerator) {
  const int64_t last = accelerator.num_processes() - 1;
  const at::Tensor tensor = at::full({4, 5}, accelerator.process_index(), on(accelerator, at::kFloat));
  accelerator.group().broadcast(tensor, last);
  expect_equal(tensor, at::full({4, 5}, last, at::kFloat), "the last rank's tensor");
}

void all_gather(Accelerator& accelerator) {
  std::vector<at::Tensor> expected;
  for (int64_t rank = 0; rank < accelerator.num_processes(); ++rank) expected.push_back(ragged(accelerator, rank));
  const at::Tensor found = accelerator.group().all_gather(ragged(accelerator, accelerator.process_index()));
  expect_equal(found, at::cat(expected), "all ranks' rows");
}

void gather_and_scatter(Accelerator& accelerator) {
  const Group& group = accelerator.group();
  const auto list = group.gather(ragged(accelerator, group.rank()));
  expect(static_cast<int64_t>(list.size()) == (group.rank() == 0 ? group.size() : 0),
         fmt::format("gather returned {} tensors", list.size()));
  for (size_t rank = 0; rank < list.size(); ++rank) {
    expect_equal(list[rank], ragged(accelerator, static_cast<int64_t>(rank)), fmt::format("rank {}'s tensor", rank));
  }
  std::vector<at::Tensor> parts;
  for (int64_t rank = 0; rank < group.size(); ++rank) parts.push_back(ragged(accelerator, rank));
  expect_equal(group.scatter(parts), ragged(accelerator, group.rank()), "the scattered part");
}

void reduce_scatter(Accelerator& accelerator) {
  const Group& group = accelerator.group();
  const at::Tensor all = (arange(4 * group.size()) + group.rank()).to(on(accelerator, at::kFloat));
  const int64_t ranks = group.size();
  const at::Tensor mine = (arange(4) + 4 * group.rank()) * ranks + ranks * (ranks - 1) / 2;
  expect_equal(group.reduce_scatter(all), mine.to(at::kFloat), "this rank's part of the sum");
}

void all_to_all(Accelerator& accelerator) {
  const Group& group = accelerator.group();
  std::vector<at::Tensor> sent;
  for (int64_t to = 0; to < group.size(); ++to) {
    sent.push_back(at::full({to + 1}, 100 * group.rank() + to, on(accelerator, at::kLong)));
  }
  const auto received = group.all_to_all(sent);
  for (int64_t from = 0; from < group.size(); ++from) {
    expect_equal(received.at(static_cast<size_t>(from)),
                 at::full({group.rank() + 1}, 100 * from + group.rank(), at::kLong),
                 fmt::format("what rank {} sent", from));
  }
}

// Every rank sends to the next one. Even ranks send first, which avoids a deadlock.
void send_and_receive(Accelerator& accelerator) {
  const Group& group = accelerator.group();
  if (group.size() == 1) return;
  const int64_t next = (group.rank() + 1) % group.size();
  const int64_t previous = (group.rank() + group.size() - 1) % group.size();
  const at::Tensor sent = at::full({7}, group.rank(), on(accelerator, at::kFloat));
  const at::Tensor received = at::zeros({7}, on(accelerator, at::kFloat));
  if (group.rank() % 2 == 0) group.send(sent, next);
  group.recv(received, previous);
  if (group.rank() % 2 != 0) group.send(sent, next);
  expect_equal(received, at::full({7}, previous, at::kFloat), fmt::format("what rank {} sent", previous));
}

void objects(Accelerator& accelerator) {
  const auto sample_text = [](int64_t rank) {
    return std::string(static_cast<size_t>(100 * rank), 'x') + std::to_string(rank);
  };
  const auto all = accelerator.gather_object(sample_text(accelerator.process_index()));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    expect(all[rank] == sample_text(static_cast<int64_t>(rank)), fmt::format("rank {}'s object arrived changed", rank));
  }
  const int64_t last = accelerator.num_processes() - 1;
  expect(accelerator.broadcast_object(sample_text(accelerator.process_index()), last) == sample_text(last),
         "the last rank's object arrived changed");
}

void padding(Accelerator& accelerator) {
  const at::Tensor mine = ragged(accelerator, accelerator.process_index());
  const at::Tensor padded = accelerator.pad_across_processes(mine);
  expect(padded.size(0) == accelerator.num_processes(), fmt::format("padded to {} rows", padded.size(0)));
  expect_equal(padded.slice(0, 0, mine.size(0)), mine, "the rows before the padding");
  expect(padded.slice(0, mine.size(0)).eq(0).all().item<bool>(), "the padding is not 0");
}

void groups(Accelerator& accelerator) {
  const Group half = accelerator.group().split(accelerator.process_index() % 2);
  const at::Tensor count = at::ones({1}, on(accelerator, at::kLong));
  half.all_reduce(count);
  expect_equal(count, at::full({1}, half.size(), at::kLong), "ranks of the half");
}

void barrier(Accelerator& accelerator) { accelerator.wait_for_everyone(); }

}  // namespace

std::vector<Check> collectives() {
  return {{"barrier", barrier},
          {"all_reduce: sum, mean, max", all_reduce},
          {"broadcast", broadcast},
          {"all_gather of different lengths", all_gather},
          {"gather, scatter", gather_and_scatter},
          {"reduce_scatter", reduce_scatter},
          {"all_to_all", all_to_all},
          {"send, receive", send_and_receive},
          {"objects", objects},
          {"padding across ranks", padding},
          {"groups of ranks", groups}};
}

}  // namespace selftest
