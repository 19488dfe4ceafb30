// SPDX-License-Identifier: Apache-2.0
// A group's operations on the device give the same results as on the CPU over the same group.
#include <thread>

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

/// The result of operation(tensor) on the device equals the result on the CPU.
void compare(at::Device device, const at::Tensor& mine, const std::function<Tensors(const at::Tensor&)>& operation) {
  const auto expected = operation(mine.clone());
  const auto found = operation(mine.to(device));
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    CHECK(found[i].device() == device);
    CHECK(at::equal(found[i].cpu(), expected[i]));
  }
}

void check_reductions(const Group& group, at::Device device) {
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
  compare(device, input(group, {5}), [&](const at::Tensor& tensor) -> Tensors {
    group.reduce(tensor, ReduceOp::mean, group.size() - 1);
    if (group.rank() + 1 < group.size()) return {};  // other ranks have none
    return {tensor};
  });
}

void check_movements(const Group& group, at::Device device) {
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
}

}  // namespace

TEST_CASE("reductions of every kind and dtype work on the device") { on_groups(check_reductions); }

TEST_CASE("gathers, scatters and exchanges of ragged rows work on the device") { on_groups(check_movements); }

TEST_CASE("a backend may run operations at once on the caller's stream and return no work") {
  const stand_in::OnCallersStream on;
  on_groups([](const Group& group, at::Device device) {
    check_reductions(group, device);
    check_movements(group, device);
    const auto ones = torch::ones({4}, device);
    auto pending = group.all_reduce_async(ones, ReduceOp::sum, accelerate::comm::Execution::deferred);
    while (!pending.done()) std::this_thread::yield();
    pending.wait();
    CHECK(at::equal(ones.cpu(), torch::full({4}, group.size(), at::kFloat)));
    const auto more = torch::ones({1000}, device);
    auto under_way = group.all_reduce_async(more);
    group.broadcast(ones, 0);
    under_way.wait();
    CHECK(at::equal(more.cpu(), torch::full({1000}, group.size(), at::kFloat)));
  });
  stand_in::same_as_on_cpu(stand_in::trains_with<torch::optim::SGD>(torch::optim::SGDOptions(0.1)),
                           stand_in::with_small_buckets(), {2});
}

TEST_CASE("no operation on the device blocks the host") {
  on_groups([](const Group& group, at::Device device) {
    const auto tensor = torch::ones({group.size(), 3}, device);
    const auto rows = torch::empty({group.size() * group.size(), 3}, device);
    const Tensors pieces(static_cast<size_t>(group.size()), tensor);
    const auto before = stand_in::host_waits(device.index());
    group.all_reduce(tensor, ReduceOp::mean);
    group.all_reduce(tensor.slice(1, 0, 3, 2));
    group.reduce(tensor, ReduceOp::sum, 0);
    group.broadcast(tensor, 0);
    static_cast<void>(group.reduce_scatter(tensor));
    static_cast<void>(group.all_gather(tensor.narrow(0, 0, group.rank())));
    static_cast<void>(group.gather(tensor, 0));
    static_cast<void>(group.scatter(pieces, 0));
    static_cast<void>(group.all_to_all(pieces));
    group.all_gather_async(rows, tensor).wait();
    if (group.size() > 1 && group.rank() == 0) group.send(tensor, 1, 3);
    if (group.rank() == 1) group.recv(tensor, 0, 3);
    CHECK(stand_in::host_waits(device.index()) == before);
  });
}

TEST_CASE("a non-contiguous tensor is reduced and broadcast in place") {
  on_groups([](const Group& group, at::Device device) {
    compare(device, input(group, {4, 6}), [&](const at::Tensor& tensor) -> Tensors {
      group.all_reduce(tensor.slice(1, 0, 6, 2));
      group.broadcast(tensor.slice(1, 1, 6, 2), group.size() - 1);
      return {tensor};
    });
  });
}

TEST_CASE("point-to-point messages and concurrent operations work on the device") {
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
      const auto total = tensor.clone();
      group.all_reduce_async(total).wait(std::chrono::minutes(1));
      const auto letter = tensor.clone();
      if (group.rank() == 0) {
        group.send(letter, 1, 3);
        letter.zero_();  // the sent data is unaffected
      }
      if (group.rank() == 1) group.recv(letter, 0, 3);
      return {sum, copy, rows, letter, total};
    });
  });
}

TEST_CASE("subgroups and duplicates of a group support the device's tensors") {
  on_groups([](const Group& group, at::Device device) {
    const auto part = group.split(group.rank() % 2);
    compare(device, input(group, {5}), [&](const at::Tensor& tensor) -> Tensors {
      part.all_reduce(tensor);
      group.duplicate().all_reduce(tensor);
      return {tensor};
    });
  });
}

TEST_CASE("an operation continues after its handle is destroyed, and keeps its memory until its end") {
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

TEST_CASE("a tensor of another rank's device is refused with the devices of the group") {
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
