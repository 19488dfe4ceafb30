// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/rebuilt_tensor.hpp"

#include <algorithm>
#include <array>
#include <string>

namespace accelerate::archive {
namespace {

// A storage type implies the dtype of its tensors. An untyped storage does not; the tensor's call then contains it.
constexpr std::array<TorchType, 18> kTorchTypes{{{"torch.FloatStorage", "F32", 32},
                                                 {"torch.DoubleStorage", "F64", 64},
                                                 {"torch.HalfStorage", "F16", 16},
                                                 {"torch.BFloat16Storage", "BF16", 16},
                                                 {"torch.LongStorage", "I64", 64},
                                                 {"torch.IntStorage", "I32", 32},
                                                 {"torch.ShortStorage", "I16", 16},
                                                 {"torch.CharStorage", "I8", 8},
                                                 {"torch.ByteStorage", "U8", 8},
                                                 {"torch.BoolStorage", "BOOL", 8},
                                                 {"torch.ComplexFloatStorage", "C64", 64},
                                                 {"torch.ComplexDoubleStorage", "C128", 128},
                                                 {"torch.uint16", "U16", 16},
                                                 {"torch.uint32", "U32", 32},
                                                 {"torch.uint64", "U64", 64},
                                                 {"torch.float8_e4m3fn", "F8_E4M3", 8},
                                                 {"torch.float8_e5m2", "F8_E5M2", 8},
                                                 {"torch.float8_e8m0fnu", "F8_E8M0", 8}}};

constexpr std::string_view kRebuildTensorV2 = "torch._utils._rebuild_tensor_v2";
constexpr std::string_view kRebuildTensorV3 =
    "torch._utils._rebuild_tensor_v3";  // with the dtype, for untyped storages
constexpr std::string_view kRebuildParameter = "torch._utils._rebuild_parameter";
constexpr std::string_view kRebuildParameterWithState = "torch._utils._rebuild_parameter_with_state";
constexpr std::string_view kRebuildFromType = "torch._tensor._rebuild_from_type_v2";  // a tensor with attributes
constexpr size_t kMetadataOfV2 = 6, kMetadataOfV3 = 7;                                // index in the arguments

struct RebuildCall {
  std::string global;
  const PickleItems* arguments;
};

std::optional<RebuildCall> call_of(const PickleValue& value) {
  const auto* object = value.as<PickleObject>();
  if (object == nullptr) return std::nullopt;
  RebuildCall call{object->parts->global.str(), &object->parts->arguments};
  // (function, class, arguments of the function, attributes)
  if (call.global == kRebuildFromType && call.arguments->size() >= 3) {
    const auto* function = (*call.arguments)[0].as<PickleGlobal>();
    const auto* arguments = (*call.arguments)[2].as<PickleTuple>();
    if (function != nullptr && arguments != nullptr) return RebuildCall{function->str(), arguments->items.get()};
  }
  return call;
}

bool is_parameter(const RebuildCall& call) {
  return call.global == kRebuildParameter || call.global == kRebuildParameterWithState;
}

const PickleValue* metadata_in(const PickleItems& arguments, size_t index) {
  if (arguments.size() <= index || arguments[index].as<PickleNone>() != nullptr) return nullptr;
  return &arguments[index];
}

}  // namespace

const AllowedGlobals& allowed_in_torch_files() {
  static const AllowedGlobals names = [] {
    AllowedGlobals all{"collections.OrderedDict", "torch.Size", "torch.device", "torch.float32", "torch.float64",
                       "torch.float16", "torch.bfloat16", "torch.int64", "torch.int32", "torch.int16", "torch.int8",
                       "torch.uint8", "torch.bool", "torch.complex64", "torch.complex128", "torch.Tensor",
                       "torch.nn.parameter.Parameter", "torch.storage.UntypedStorage", "collections.defaultdict",
                       "collections.Counter", "builtins.dict", "numpy._core.multiarray._reconstruct",
                       "numpy.core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype", "_codecs.encode",
                       // In files of torch::save() and TorchScript: classes, and lists with an item type.
                       "__torch__.*", "torch.jit._pickle.build_intlist", "torch.jit._pickle.build_doublelist",
                       "torch.jit._pickle.build_boollist", "torch.jit._pickle.build_tensorlist",
                       "torch.jit._pickle.restore_type_tag"};
    for (const auto name :
         {kRebuildTensorV2, kRebuildTensorV3, kRebuildParameter, kRebuildParameterWithState, kRebuildFromType}) {
      all.insert(std::string(name));
    }
    for (const TorchType& type : kTorchTypes) all.insert(std::string(type.global));
    return all;
  }();
  return names;
}

const TorchType* torch_type_of(const PickleValue& value) {
  const auto* global = value.as<PickleGlobal>();
  if (global == nullptr) return nullptr;
  const auto found = std::find_if(kTorchTypes.begin(), kTorchTypes.end(),
                                  [name = global->str()](const TorchType& type) { return type.global == name; });
  return found == kTorchTypes.end() ? nullptr : &*found;
}

const PickleItems* arguments_of(const PickleValue& value, std::string_view global) {
  const auto* object = value.as<PickleObject>();
  return object != nullptr && object->parts->global.str() == global ? &object->parts->arguments : nullptr;
}

bool is_parameter(const PickleValue& value) {
  const auto call = call_of(value);
  return call && is_parameter(*call);
}

std::optional<RebuiltTensor> rebuilt_tensor(const PickleValue& value) {
  const auto call = call_of(value);
  if (!call) return std::nullopt;
  const PickleItems& arguments = *call->arguments;
  if (is_parameter(*call)) return arguments.empty() ? std::nullopt : rebuilt_tensor(arguments.front());
  if (call->global == kRebuildTensorV2) {
    return RebuiltTensor{.arguments = &arguments, .metadata = metadata_in(arguments, kMetadataOfV2)};
  }
  if (call->global != kRebuildTensorV3) return std::nullopt;
  return RebuiltTensor{.arguments = &arguments,
                       .dtype = arguments.size() > 6 ? &arguments[6] : nullptr,
                       .metadata = metadata_in(arguments, kMetadataOfV3)};
}

}  // namespace accelerate::archive
