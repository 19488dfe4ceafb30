// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/coalesced.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "accelerate/base/version_counter.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/gradient/join_coordinator.hpp"
#include "accelerate/gradient/pieces.hpp"
#include "accelerate/gradient/verify_parameters.hpp"

namespace accelerate::gradient {
namespace {

// A view of another dtype must start at a multiple of its element size; 16 bytes is the largest element.
constexpr int64_t kAlign = 16;

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Groups tensors by a key. Groups are in order of first appearance, so they are the same on every rank.
template <typename Key>
auto group_by(const std::vector<at::Tensor>& tensors, Key key) {
  std::vector<std::pair<decltype(key(tensors[0])), std::vector<at::Tensor>>> groups;
  for (const at::Tensor& tensor : tensors) {
    auto found = groups.begin();
    while (found != groups.end() && found->first != key(tensor)) ++found;
    if (found == groups.end()) found = groups.insert(found, {key(tensor), {}});
    found->second.push_back(tensor);
  }
  return groups;
}

// Removes the repetitions of an expanded tensor, which share memory and cannot be written individually.
at::Tensor without_repetitions(at::Tensor tensor, const at::Tensor& like) {
  for (int64_t axis = 0; axis < like.dim(); ++axis) {
    if (like.stride(axis) == 0 && like.size(axis) > 1) tensor = tensor.narrow(axis, 0, 1);
  }
  return tensor;
}

void write_values(const at::Tensor& tensor, const at::Tensor& values) {
  without_repetitions(tensor, tensor).copy_(without_repetitions(values, tensor), true);
}

// Returns the name of the layer, with its last point, and the name of the buffer within it.
std::pair<std::string_view, std::string_view> split_name(std::string_view name) {
  const size_t own = name.rfind('.') + 1;  // npos + 1 is 0
  return {name.substr(0, own), name.substr(own)};
}

// True if batch normalisation uses this buffer name in C++, Python and TorchScript.
bool names_statistics(std::string_view name) {
  const std::string_view last = split_name(name).second;
  return last == "running_mean" || last == "running_var";
}

// Returns the numbers of training batches, by layer.
std::unordered_map<std::string_view, at::Tensor> batch_counts(const std::vector<NamedTensor>& buffers) {
  std::unordered_map<std::string_view, at::Tensor> counts;
  for (const auto& [name, tensor] : buffers) {
    const auto [layer, own] = split_name(name);
    if (own == "num_batches_tracked") counts.emplace(layer, tensor);
  }
  return counts;
}

// NaN equals NaN. On another device than the CPU the host waits for the result.
bool equals(const at::Tensor& tensor, const at::Tensor& values) {
  if (!tensor.is_cpu()) {
    const at::Tensor differs = tensor.ne(values).logical_and_(tensor.eq(tensor).logical_or_(values.eq(values)));
    return !differs.any().item<bool>();
  }
  const at::Tensor dense = tensor.resolve_conj().resolve_neg().contiguous();
  return dense.nbytes() == 0 || std::memcmp(dense.const_data_ptr(), values.const_data_ptr(), dense.nbytes()) == 0;
}

void write_uncounted(const at::Tensor& tensor, const at::Tensor& values) {
  const at::AutoDispatchBelowADInplaceOrView uncounted;
  write_values(tensor, values);
}

std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& one : named) tensors.push_back(one.tensor);
  return tensors;
}

auto device_of(const at::Tensor& tensor) { return tensor.device(); }
auto kind_of(const at::Tensor& tensor) { return std::pair(tensor.device(), tensor.scalar_type()); }

}  // namespace

BufferBroadcast::Pack BufferBroadcast::pack(std::vector<at::Tensor> tensors) {
  int64_t total = 0;
  for (const at::Tensor& tensor : tensors) total += aligned(static_cast<int64_t>(tensor.nbytes()));
  Pack pack{at::empty({total}, tensors.front().options().dtype(at::kByte).requires_grad(false)), {}, {}};
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    pack.views.push_back(pack.bytes.narrow(0, offset, bytes).view(tensor.scalar_type()).view(tensor.sizes()));
    offset += aligned(bytes);
  }
  pack.bytes.zero_();
  pack.tensors = std::move(tensors);
  return pack;
}

void BufferBroadcast::broadcast(const comm::Group& group, const Pack& pack, int64_t root) {
  const bool sends = group.rank() == root;
  for (size_t i = 0; sends && i < pack.tensors.size(); ++i) pack.views[i].copy_(pack.tensors[i], true);
  group.broadcast(pack.bytes, root);
}

void BufferBroadcast::unpack(const Pack& pack) {
  for (size_t i = 0; i < pack.tensors.size(); ++i) write_values(pack.tensors[i], pack.views[i]);
}

bool BufferBroadcast::Pack::fits() const {
  return std::equal(tensors.begin(), tensors.end(), views.begin(),
                    [](const at::Tensor& tensor, const at::Tensor& view) {
                      return tensor.scalar_type() == view.scalar_type() && tensor.device() == view.device();
                    });
}

std::vector<BufferBroadcast::Pack> BufferBroadcast::pack_by_device(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<Pack> packs;
  for (auto& [device, those] : group_by(tensors, device_of)) packs.push_back(pack(std::move(those)));
  return packs;
}

BufferBroadcast::BufferBroadcast(comm::Group group, const std::vector<NamedTensor>& buffers)
    : group_(std::move(group)) {
  verify_parameters(group_, "buffer", buffers);
  pack_buffers(buffers);
  if (buffers.empty()) return;
  description_ = fmt::format("the buffers of the model ({}) are not made equal",
                             comm::first_name_and_count(buffers.front().name, buffers.size()));
}

void BufferBroadcast::follow() {
  if (now_) return pack_buffers(now_());
  if (std::all_of(packs_.begin(), packs_.end(), [](const Pack& one) { return one.fits(); })) return;
  std::vector<NamedTensor> buffers;  // without names, because the recorded state per buffer is carried over
  for (const Pack& one : packs_) {
    for (const at::Tensor& tensor : one.tensors) buffers.push_back({{}, tensor});
  }
  pack_buffers(buffers);
}

void BufferBroadcast::pack_buffers(const std::vector<NamedTensor>& buffers) {
  std::unordered_map<const void*, Known> known;
  for (const Pack& one : packs_) {
    for (size_t i = 0; i < one.tensors.size(); ++i) known.emplace(one.tensors[i].unsafeGetTensorImpl(), one.known[i]);
  }
  const auto counts = batch_counts(buffers);
  for (const auto& [name, tensor] : buffers) {
    const auto [found, is_new] = known.try_emplace(tensor.unsafeGetTensorImpl());
    if (const auto count = counts.find(split_name(name).first); names_statistics(name) && count != counts.end()) {
      found->second.batches = count->second;
    }
    if (!is_new) continue;
    found->second.is_statistics = names_statistics(name);
    found->second.note(tensor);
  }
  packs_ = pack_by_device(tensors_of(buffers));
  for (Pack& one : packs_) {
    for (const at::Tensor& tensor : one.tensors) one.known.push_back(known.at(tensor.unsafeGetTensorImpl()));
  }
}

// A graph that saved a buffer must not compute with other values unnoticed. A buffer that changes therefore gets a new
// version, and backward throws PyTorch's error. A buffer that keeps its values is not written: constants (masks,
// tables) may be used by several forwards before one backward. Batch normalisation saves its statistics in training
// without using them in backward, and updates them without a new version; this function does the same for them. In
// evaluation its backward uses them, and the forward does not count a batch.
void BufferBroadcast::receive(Pack& pack) {
  for (size_t i = 0; i < pack.tensors.size(); ++i) {
    const at::Tensor& tensor = pack.tensors[i];
    const at::Tensor& values = pack.views[i];
    Known& known = pack.known[i];
    known.least_holders = std::min(known.least_holders, tensor.use_count());
    if (tensor.is_inference() || known.trained(tensor)) {
      write_uncounted(tensor, values);
      continue;
    }
    // A graph holds its saved tensors. If nothing else holds the buffer, the host need not wait for a comparison.
    const bool compares = tensor.is_cpu() || tensor.use_count() > known.least_holders;
    if (!compares || !equals(tensor, values)) write_values(tensor, values);
  }
}

void BufferBroadcast::Known::note(const at::Tensor& buffer) {
  version = base::version_of(buffer);
  counter = batches.unsafeGetTensorImpl();
  counter_version = base::version_of(batches);
}

bool BufferBroadcast::Known::trained(const at::Tensor& buffer) const {
  if (!is_statistics || base::version_of(buffer) != version) return false;
  // TorchScript may replace the counter by another tensor.
  return !batches.defined() || counter != batches.unsafeGetTensorImpl() || counter_version != base::version_of(batches);
}

void BufferBroadcast::note_versions() {
  for (Pack& pack : packs_) {
    for (size_t i = 0; i < pack.tensors.size(); ++i) pack.known[i].note(pack.tensors[i]);
  }
}

void BufferBroadcast::run(int64_t root) {
  if (group_.size() == 1 || packs_.empty()) return;
  const at::NoGradGuard no_grad;
  follow();
  if (join_coordinator_ != nullptr) root = join_coordinator_->announce(join_operation_).root;
  for (Pack& one : packs_) {
    comm::with_operation_context("forward", description_, group_.place(), [&] { broadcast(group_, one, root); });
    if (group_.rank() != root) receive(one);
  }
}

void BufferBroadcast::before_forward(bool synchronised) {
  if (due_) run();
  due_ = synchronised;
  if (group_.size() > 1) note_versions();
}

std::vector<BufferBroadcast::WithRoot> BufferBroadcast::with_root(int64_t root) {
  std::vector<WithRoot> all;
  if (group_.size() == 1 || packs_.empty()) return all;
  const at::NoGradGuard no_grad;
  follow();
  for (const Pack& one : packs_) {
    broadcast(group_, one, root);
    // Copies the whole pack, because the next forward overwrites its memory.
    const at::Tensor bytes = one.bytes.clone();
    int64_t offset = 0;
    for (const at::Tensor& tensor : one.tensors) {
      const auto size = static_cast<int64_t>(tensor.nbytes());
      all.push_back({tensor, bytes.narrow(0, offset, size).view(tensor.scalar_type()).view(tensor.sizes())});
      offset += aligned(size);
    }
  }
  return all;
}

std::vector<at::Tensor> BufferBroadcast::tensors() {
  follow();
  std::vector<at::Tensor> all;
  for (const Pack& one : packs_) all.insert(all.end(), one.tensors.begin(), one.tensors.end());
  return all;
}

void broadcast_tensors(const comm::Group& group, const std::vector<at::Tensor>& tensors, int64_t root,
                       int64_t cap_bytes) {
  if (group.size() == 1) return;
  const at::NoGradGuard no_grad;
  for (const auto& [device, those] : group_by(tensors, device_of)) {
    for (auto& piece : pieces_of(those, cap_bytes)) {
      if (piece.size() == 1 && piece.front().is_non_overlapping_and_dense()) {
        group.broadcast(piece.front(), root);
        continue;
      }
      const auto pack = BufferBroadcast::pack(std::move(piece));
      BufferBroadcast::broadcast(group, pack, root);
      if (group.rank() != root) BufferBroadcast::unpack(pack);
    }
  }
}

void average_parameters(const comm::Group& group, const std::vector<at::Tensor>& tensors) {
  if (group.size() == 1) return;
  const at::NoGradGuard no_grad;
  for (auto& [kind, those] : group_by(tensors, kind_of)) {
    if (!those.front().is_floating_point() && !those.front().is_complex()) continue;
    std::vector<at::Tensor> flat;
    for (const at::Tensor& tensor : those) flat.push_back(tensor.reshape({-1}));
    const at::Tensor sum = at::cat(flat);
    group.all_reduce(sum, comm::ReduceOp::mean);
    int64_t offset = 0;
    for (const at::Tensor& tensor : those) {
      write_values(tensor, sum.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
      offset += tensor.numel();
    }
  }
}

}  // namespace accelerate::gradient
