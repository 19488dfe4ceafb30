// SPDX-License-Identifier: Apache-2.0
// A group's operations on the device give what they give on the CPU, over the same group.
#include "tests/stand_in/ranks.hpp"

using accelerate::comm::Group;
using accelerate::comm::ReduceOp;
using stand_in::Tensors;

namespace {

void on_groups(const std::function<void(const Group&, at::Device)>& body) {
  for (const int64_t ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    stand_in::at_every_pace([&] {
      stand_in::on_devices(
          ranks, [&](accelerate::Accelerator& accelerator) { body(accelerator.group(), accelerator.device()); });
    });
  }
}

at::Tensor input(const Group& group, at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(group.rank()) + 5);
  return (at::randn(sizes, generator) * 8).to(dtype);
}

/// What operation(tensor) gives on the device is what it gives on the CPU.
void compare(at::Device device, const at::Tensor& mine, const std::function<Tensors(const at::Tensor&)>& operation) {
  const auto expected = operation(mine.clone());
  const auto found = operation(mine.to(device));
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    CHECK(found[i].device() == device);
    CHECK(at::equal(found[i].cpu(), expected[i]));
  }
}

}  // namespace

TEST_CASE("reductions of every kind and dtype") {
  on_groups([](const Group& group, at::Device device) {
    for (const auto op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::max, ReduceOp::min, ReduceOp::product}) {
      compare(device, input(group, {3, 5}), [&](const at::Tensor& tensor) -> Tensors {
        group.all_reduce(tensor, op);
        return {tensor};
      });
    }
    for (const auto dtype : {at::kShort, at::kLong, at::kBool, at::kBFloat16, at::kDouble}) {
      compare(device, input(group, {7}, dtype), [&](const at::Tensor& tensor) -> Tensors {
        group.all_reduce(tensor);
        return {tensor};
      });
    }
    compare(device, input(group, {2 * group.size(), 3}),
            [&](const at::Tensor& tensor) -> Tensors { return {group.reduce_scatter(tensor)}; });
  });
}

TEST_CASE("a tensor with gaps is reduced and broadcast in place") {
  on_groups([](const Group& group, at::Device device) {
    compare(device, input(group, {4, 6}), [&](const at::Tensor& tensor) -> Tensors {
      group.all_reduce(tensor.slice(1, 0, 6, 2));
      group.broadcast(tensor.slice(1, 1, 6, 2), group.size() - 1);
      return {tensor};
    });
  });
}

TEST_CASE("gathers, scatters and exchanges of ragged rows") {
  on_groups([](const Group& group, at::Device device) {
    const auto rank = group.rank();
    compare(device, input(group, {rank + 1, 2}), [&](const at::Tensor& tensor) -> Tensors {
      auto all = group.all_gather_list(tensor);
      all.push_back(group.all_gather(tensor));
      for (const auto& one : group.gather(tensor, 0)) all.push_back(one);
      const Tensors pieces(static_cast<size_t>(group.size()), tensor);
      all.push_back(group.scatter(pieces, group.size() - 1));
      for (const auto& one : group.all_to_all(pieces)) all.push_back(one);
      return all;
    });
  });
}

TEST_CASE("messages, and operations under way together") {
  on_groups([](const Group& group, at::Device device) {
    if (group.size() == 1) return;
    compare(device, input(group, {6}), [&](const at::Tensor& tensor) -> Tensors {
      const auto sum = tensor.clone();
      const auto copy = tensor.clone();
      const auto rows = tensor.new_empty({6 * group.size()});
      auto first = group.all_reduce_async(sum);
      auto second = group.broadcast_async(copy, 1);
      auto third = group.all_gather_async(rows, tensor);
      third.wait();
      second.wait();
      first.wait();
      const auto letter = tensor.clone();
      if (group.rank() == 0) group.send(letter, 1, 3);
      if (group.rank() == 1) group.recv(letter, 0, 3);
      return {sum, copy, rows, letter};
    });
  });
}

TEST_CASE("parts and duplicates of a group carry the device's tensors") {
  on_groups([](const Group& group, at::Device device) {
    const auto part = group.split(group.rank() % 2);
    compare(device, input(group, {5}), [&](const at::Tensor& tensor) -> Tensors {
      part.all_reduce(tensor);
      group.duplicate().all_reduce(tensor);
      return {tensor};
    });
  });
}

TEST_CASE("a handle that is dropped lets its operation go on, and keeps its memory until then") {
  stand_in::at_every_pace([] {
    stand_in::on_devices(2, [](accelerate::Accelerator& accelerator) {
      const auto& group = accelerator.group();
      static_cast<void>(group.all_reduce_async(torch::ones({1000}, accelerator.device())));
      const auto more = torch::full({1000}, 2.0, accelerator.device());
      group.all_reduce(more);
      CHECK(more.sum().item<double>() == 4000);
    });
  });
}

TEST_CASE("a tensor of another rank's device is refused with what the group carries") {
  stand_in::on_devices(2, [](accelerate::Accelerator& accelerator) {
    const auto text = [&] {
      try {
        accelerator.group().all_reduce(torch::ones({1}, at::kMeta));
      } catch (const accelerate::Error& error) {
        return std::string(error.what());
      }
      return std::string("no error");
    }();
    CHECK(text.ends_with(
        "all_reduce: the tensor is on meta, this group (standin+threads) carries CPU and STANDIN tensors"));
  });
}
