// SPDX-License-Identifier: Apache-2.0
#include "accelerate/checkpoint/dcp_tensors.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "accelerate/archive/members.hpp"
#include "accelerate/checkpoint/tensors.hpp"

namespace accelerate::checkpoint {
namespace {

using archive::DcpFolder;
using archive::DcpTensor;

// Each mapped piece is a tensor and a copy of its own. Tensors that are divided by columns have many short runs.
constexpr uint64_t kMinPieceBytes = uint64_t{4} << 10;

at::Tensor copied(DcpFolder& folder, const DcpTensor& tensor, uint64_t begin, uint64_t end, c10::IntArrayRef sizes,
                  c10::ScalarType dtype) {
  at::Tensor values = at::empty(sizes, dtype);
  folder.read(tensor, begin, end, [&] { return static_cast<char*>(values.mutable_data_ptr()); });
  return values;
}

state::SavedElements mapped_piece(const std::shared_ptr<DcpFolder>& folder, const DcpFolder::MappedElements& elements,
                                  c10::ScalarType dtype) {
  auto* const data = const_cast<char*>(elements.bytes.data());  // writes would stay in the process
  const bool aligned = reinterpret_cast<uintptr_t>(data) % c10::elementSize(dtype) == 0;
  const uint64_t count = aligned ? elements.end - elements.begin : elements.bytes.size();
  return {static_cast<int64_t>(elements.begin),
          at::from_blob(
              data, {static_cast<int64_t>(count)}, [folder](void*) {}, aligned ? dtype : at::kByte)};
}

}  // namespace

at::Tensor DcpTensors::tensor(const std::shared_ptr<DcpFolder>& folder, const DcpTensor& tensor) {
  const auto dtype = dtype_of_safetensors(tensor.dtype);
  if (!dtype) {
    folder->origin().broken("the tensor {} is of dtype {}, which LibTorch lacks",
                            archive::quote_for_terminal(tensor.name), tensor.dtype);
  }
  const std::vector<int64_t> sizes(tensor.shape.begin(), tensor.shape.end());
  if (tensor.elements <= 1) return copied(*folder, tensor, 0, tensor.elements, sizes, *dtype);
  folder->check(tensor);  // a load verifies everything before it changes anything
  at::Tensor placeholder = at::empty(sizes, at::TensorOptions(*dtype).device(c10::kMeta));
  saved_.emplace(placeholder.unsafeGetTensorImpl(), Saved{placeholder, folder, &tensor});
  return placeholder;
}

std::vector<state::SavedElements> DcpTensors::read(const at::Tensor& placeholder, int64_t begin, int64_t end) {
  const auto found = saved_.find(placeholder.unsafeGetTensorImpl());
  TORCH_INTERNAL_ASSERT(found != saved_.end(), "the placeholder belongs to another checkpoint");
  const auto& [own, folder, tensor] = found->second;
  const auto first = static_cast<uint64_t>(begin), last = static_cast<uint64_t>(end);
  const c10::ScalarType dtype = own.scalar_type();
  const auto elements = folder->mapped(*tensor, first, last);
  std::vector<state::SavedElements> pieces;
  if (elements && elements->size() <= 1 + (last - first) * own.element_size() / kMinPieceBytes) {
    for (const auto& run : *elements) pieces.push_back(mapped_piece(folder, run, dtype));
  } else {
    pieces.push_back({begin, copied(*folder, *tensor, first, last, {end - begin}, dtype)});
  }
  return pieces;
}

}  // namespace accelerate::checkpoint
