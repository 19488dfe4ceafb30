// SPDX-License-Identifier: Apache-2.0
// Guarantees of tree/collectives.hpp for any backend and rank count. Every rank computes the expected results alone.
#pragma once

#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/tree/collectives.hpp"

namespace tree_cases {

namespace comm = accelerate::comm;
namespace tree = accelerate::tree;
using comm::ReduceOp;
using Named = std::map<std::string, at::Tensor>;

/// doctest only counts assertions of one thread, so ranks as threads collect failures: case -> failure text, "" on
/// success.
using Results = std::vector<std::pair<std::string, std::string>>;

struct Labelled {
  at::Tensor x;
  std::vector<at::Tensor> y;
  auto tree_members() { return std::tie(x, y); }
};

inline std::string text(const at::Tensor& tensor) {
  std::ostringstream out;
  out << tensor.dtype() << tensor.sizes() << tensor;
  return out.str();
}

inline void same(std::string& failed, const at::Tensor& found, const at::Tensor& expected) {
  if (found.scalar_type() == expected.scalar_type() && found.equal(expected)) return;
  failed += "found " + text(found) + ", expected " + text(expected) + "; ";
}

/// arange(P) + 1 + P * r as float, the input t of the reference.
inline at::Tensor t(int64_t rank, int64_t world) { return torch::arange(world).to(torch::kFloat) + 1 + world * rank; }

inline std::string gathers(const comm::Group& group) {
  std::string failed;
  const auto rank = group.rank(), world = group.size();
  same(failed, tree::gather(t(rank, world), group), torch::arange(world * world).to(torch::kFloat) + 1);
  const auto mine = torch::arange(6).view({3, 2}).t();  // not contiguous
  same(failed, tree::gather(mine, group), torch::cat(std::vector<at::Tensor>(static_cast<size_t>(world), mine)));
  const auto nested =
      tree::gather(std::pair{Named{{"a", t(rank, world)}}, Labelled{t(rank, world), {t(rank, world)}}}, group);
  for (const auto& one : tree::flatten(nested)) same(failed, one, torch::arange(world * world).to(torch::kFloat) + 1);
  return failed;
}

inline std::string gathers_scalars_and_ragged(const comm::Group& group) {
  std::string failed;
  const auto rank = group.rank(), world = group.size();
  if (world > 1) same(failed, tree::gather(torch::tensor(rank), group), torch::arange(world));
  std::vector<at::Tensor> all;
  for (int64_t r = 0; r < world; ++r) all.push_back(torch::full({r, 2}, r, torch::kInt));
  same(failed, tree::gather(all[static_cast<size_t>(rank)], group), torch::cat(all));
  return failed;
}

inline std::string gather_drops_history(const comm::Group& group) {
  const auto leaf = torch::ones({2}, torch::requires_grad());
  if (group.size() > 1 && tree::gather(leaf * 2, group).requires_grad()) return "requires grad";
  return "";
}

inline std::string reduces(const comm::Group& group) {
  std::string failed;
  const auto rank = group.rank(), world = group.size();
  const auto mine = t(rank, world);
  at::Tensor sum = torch::zeros({world});
  for (int64_t r = 0; r < world; ++r) sum += t(r, world);
  same(failed, tree::reduce(mine, group), sum);
  same(failed, tree::reduce(mine, group, ReduceOp::mean), sum / world);
  same(failed, tree::reduce(mine, group, ReduceOp::max), t(world - 1, world));
  same(failed, tree::reduce(mine, group, ReduceOp::sum, 0.5), sum * 0.5);
  same(failed, tree::reduce(Named{{"k", mine}}, group).at("k"), sum);
  same(failed, mine, t(rank, world));  // not changed
  return failed;
}

inline std::string broadcasts(const comm::Group& group) {
  std::string failed;
  const auto rank = group.rank(), world = group.size();
  const auto mine = t(rank, world);
  same(failed, tree::broadcast(mine, group), t(0, world));
  same(failed, mine, t(0, world));  // in place
  const std::vector<at::Tensor> list{t(rank, world), torch::tensor(rank)};
  tree::broadcast(list, group, world - 1);
  same(failed, list[0], t(world - 1, world));
  same(failed, list[1], torch::tensor(world - 1));
  const auto leaf = torch::full({2}, rank, torch::requires_grad().dtype(torch::kFloat));
  tree::broadcast(leaf, group);
  same(failed, leaf.detach(), torch::zeros({2}));
  return failed;
}

inline std::string pads(const comm::Group& group) {
  std::string failed;
  const auto rank = group.rank(), world = group.size();
  const auto mine = torch::arange(rank + 1);
  const auto zeros = torch::zeros({world - 1 - rank}, torch::kLong);
  same(failed, tree::pad_across_processes(mine, group), torch::cat({mine, zeros}));
  same(failed, tree::pad_across_processes(mine, group, {.pad_index = -1, .pad_first = true}),
       torch::cat({zeros - 1, mine}));

  const auto bools = torch::ones({rank + 1}, torch::kBool);
  same(failed, tree::pad_across_processes(bools, group), torch::cat({bools, zeros.to(torch::kBool)}));

  const auto wide = torch::ones({2, rank + 1});
  for (const int64_t dim : {1, -1})
    same(failed, tree::pad_across_processes(wide, group, {.dim = dim}),
         torch::cat({wide, torch::zeros({2, world - 1 - rank})}, 1));
  return failed;
}

inline std::string pads_what_can_be_padded(const comm::Group& group) {
  std::string failed;
  const auto rank = group.rank(), world = group.size();
  const auto flat = torch::ones({3});
  const auto untouched = tree::pad_across_processes(flat, group, {.dim = 1});
  same(failed, untouched, flat);
  if (untouched.is_alias_of(flat)) failed += "the result shares memory with the argument; ";
  const std::pair value{torch::ones({rank == 0 ? world + 1 : world}), torch::tensor(rank)};
  const auto padded = tree::pad_across_processes(value, group);
  auto expected = torch::ones({world + 1});
  if (rank != 0) expected[world] = 0;
  same(failed, padded.first, expected);
  same(failed, padded.second, value.second);  // 0-dim has no dimension 0
  if (padded.first.is_alias_of(value.first)) failed += "the longest shares memory with the argument; ";
  return failed;
}

inline std::string refuses_to_pad_other_dimensions(const comm::Group& group) {
  if (group.size() == 1) return {};
  const auto mine = group.rank() == 0 ? torch::ones({1, 5}) : torch::ones({1, 1, 6});
  try {
    (void)tree::pad_across_processes(mine, group, {.dim = 1});
  } catch (const accelerate::Error& error) {
    const std::string_view message = error.what();
    return message.find(
               "pad_across_processes: the ranks' tensors have different numbers of dimensions: rank 0 [1, 5], rank "
               "1 [1, 1, 6]") != message.npos &&
                   message.ends_with("; give the same number on every rank")
               ? ""
               : error.what();
  }
  return "padded; ";
}

inline std::string copies_what_one_rank_has(const comm::Group& group) {
  std::string failed;
  const auto root = group.size() - 1;
  for (const auto& made :
       {torch::tensor({1, 2, 3}, torch::kShort), torch::ones({2, 1}, torch::kBFloat16), torch::tensor(true)}) {
    const auto mine = group.rank() == root ? made : at::Tensor();
    const auto copy = tree::copy_tensor_to_devices(mine, group, root);
    same(failed, copy, made);
    if (group.rank() == root && !copy.is_same(mine)) failed += "root's own was copied; ";
  }
  try {
    (void)tree::copy_tensor_to_devices({}, group);
    failed += "an undefined tensor was copied; ";
  } catch (const accelerate::Error& error) {
    const std::string expected =
        "copy_tensor_to_devices: the tensor of rank 0 is undefined; the argument root selects the rank whose tensor is "
        "sent";
    if (!std::string(error.what()).ends_with(expected)) failed += error.what();
  }
  return failed;
}

inline Results run(const comm::Group& group) {
  return {{"gather joins in rank order, nested", gathers(group)},
          {"gather makes 0-dim 1-dim and takes ragged rows", gathers_scalars_and_ragged(group)},
          {"gather drops gradient history", gather_drops_history(group)},
          {"reduce: sum by default, mean, max, scale; input unchanged", reduces(group)},
          {"broadcast is in place, from any rank", broadcasts(group)},
          {"pad_across_processes: index, first, bool, negative dim", pads(group)},
          {"pad_across_processes leaves the rest alone", pads_what_can_be_padded(group)},
          {"pad_across_processes refuses other numbers of dimensions", refuses_to_pad_other_dimensions(group)},
          {"copy_tensor_to_devices needs only one rank's tensor", copies_what_one_rank_has(group)}};
}

}  // namespace tree_cases
