// SPDX-License-Identifier: Apache-2.0
// Private: calls in torch.save's pickles that rebuild tensors and Parameters.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "accelerate/archive/pickle_value.hpp"
#include "accelerate/archive/unpickle.hpp"

namespace accelerate::archive {

/// A dtype of PyTorch with its names in files.
struct TorchType {
  std::string_view global;  ///< "torch.FloatStorage", or "torch.uint16" for a dtype without a storage type
  std::string_view dtype;   ///< "F32", as in safetensors
  uint64_t bits = 0;        ///< of an element
};

/// The names that a pickle of torch.save or torch::save() may contain.
[[nodiscard]] const AllowedGlobals& allowed_in_torch_files();

/// Returns the type for the name of a storage type or dtype; null for any other value.
[[nodiscard]] const TorchType* torch_type_of(const PickleValue& value);

/// Returns the arguments if the value is a call of this global; null otherwise.
[[nodiscard]] const PickleItems* arguments_of(const PickleValue& value, std::string_view global);

/// True if the value is a Parameter, with or without Python attributes.
[[nodiscard]] bool is_parameter(const PickleValue& value);

/// A call of torch._utils._rebuild_tensor_v2 or _rebuild_tensor_v3.
struct RebuiltTensor {
  const PickleItems* arguments = nullptr;  ///< storage, offset, shape, stride, requires_grad, hooks, ...
  const PickleValue* dtype = nullptr;      ///< null if the storage's type is the dtype
  const PickleValue* metadata = nullptr;   ///< dict with the conj and neg bits; null if neither is set
};

/// Returns the call that rebuilds the tensor. Parameters, and the Python attributes of tensors and Parameters, are
/// unwrapped. Returns no value if `value` is not a tensor.
[[nodiscard]] std::optional<RebuiltTensor> rebuilt_tensor(const PickleValue& value);

}  // namespace accelerate::archive
