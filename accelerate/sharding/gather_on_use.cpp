// SPDX-License-Identifier: Apache-2.0
#include "accelerate/sharding/gather_on_use.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "accelerate/base/error.hpp"

namespace accelerate::sharding {
namespace {

// A per-tensor key that LibTorch 2.11 to 2.15 reserves and does not use. Above autograd, so a gather runs before
// autograd saves the parameter. Another registered fallback of this key in the process is an error when this file is
// loaded.
constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

// key_set_ is protected: a derived class may form the pointer to the member.
struct KeySetOfTensor : c10::TensorImpl {
  static c10::DispatchKeySet c10::TensorImpl::*member() { return &KeySetOfTensor::key_set_; }
};

// StorageImpl can refuse data(), but public functions only set that flag and never clear it. Access checks do not apply
// to the arguments of an explicit instantiation.
template <typename Tag, typename Tag::type Member>
struct PrivateMember {
  friend typename Tag::type member_of(Tag) { return Member; }
};
struct RefusesData {
  using type = bool c10::StorageImpl::*;
  friend type member_of(RefusesData);
};
template struct PrivateMember<RefusesData, &c10::StorageImpl::throw_on_immutable_data_ptr_>;

using MemoryContext = std::shared_ptr<const GatheredParameter>;
void delete_context(void* context) { delete static_cast<MemoryContext*>(context); }

// Another thread may free a unit, and so replace its contexts, while this one reads them.
std::mutex contexts_mutex;

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

// What an operator does with its arguments. Depends on the schema only.
struct OperatorUse {
  bool needs_values = true;
  std::vector<bool> writes{};
};

// Views and queries of shapes need no values. If such an operator is a composite that copies after all, as flatten() of
// a tensor that is not contiguous, then the copy inside it passes the fallback itself.
bool needs_values(const c10::FunctionSchema& schema) {
  const std::string_view name = schema.name();
  static constexpr std::string_view kQueries[] = {"aten::size",
                                                  "aten::stride",
                                                  "aten::sym_size",
                                                  "aten::sym_stride",
                                                  "aten::sym_numel",
                                                  "aten::numel",
                                                  "aten::dim",
                                                  "aten::storage_offset",
                                                  "aten::is_same_size",
                                                  "aten::requires_grad_",
                                                  "aten::_version",
                                                  "aten::is_leaf",
                                                  "aten::output_nr",
                                                  "aten::retain_grad",
                                                  "aten::_has_compatible_shallow_copy_type"};
  if (name.ends_with("_like")) return false;
  for (const std::string_view query : kQueries) {
    if (name == query) return false;
  }
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return false;
  }
  return true;
}

const OperatorUse& use_of(const c10::FunctionSchema& schema) {
  thread_local std::unordered_map<const c10::FunctionSchema*, OperatorUse> known;
  const auto [entry, is_new] = known.try_emplace(&schema);
  if (!is_new) return entry->second;
  entry->second.needs_values = needs_values(schema);
  for (const c10::Argument& argument : schema.arguments()) {
    entry->second.writes.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite());
  }
  return entry->second;
}

// The owners of the memory that one operator uses. Each is held until the operator ended, so that the gather of one
// does not free another.
class UsedMemory {
 public:
  UsedMemory() = default;
  UsedMemory(const UsedMemory&) = delete;
  UsedMemory& operator=(const UsedMemory&) = delete;
  ~UsedMemory() {
    for (const auto& owner : owners_) owner->after_operator();
  }

  void add(const c10::IValue& value, bool writes) {
    if (value.isTensor()) return add(value.toTensor(), writes);
    if (!value.isList()) return;
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor()) add(element.toTensor(), writes);
    }
  }

 private:
  void add(const at::Tensor& tensor, bool writes) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    MemoryContext parameter;
    {
      const std::lock_guard lock(contexts_mutex);
      const at::DataPtr& memory = storage_of(tensor)->_mutable_data_ptr_no_checks();
      if (memory.get_deleter() != &delete_context) return;
      parameter = *static_cast<MemoryContext*>(memory.get_context());
    }
    auto owner = parameter->owner.lock();
    if (!owner) fail_without_owner(parameter->name);
    owner->before_operator(parameter->name, writes);
    owners_.push_back(std::move(owner));
  }

  c10::SmallVector<std::shared_ptr<GatherOnUse>, 4> owners_;
};

void gather_before(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto rest = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  const c10::FunctionSchema& schema = op.schema();
  const OperatorUse& use = use_of(schema);
  if (!use.needs_values) return op.redispatchBoxed(rest, stack);
  UsedMemory used;
  const size_t first = stack->size() - use.writes.size();
  for (size_t i = 0; i < use.writes.size(); ++i) used.add((*stack)[first + i], use.writes[i]);
  // Operators inside this one find the memory available. Their views still inherit the key.
  const c10::impl::ExcludeDispatchKeyGuard inside(kKey);
  op.redispatchBoxed(rest, stack);
}

// At the first use, because a process may load several copies of this library, of which one may shard models.
void register_fallback() {
  static const auto registered = [] {
    try {
      auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
      library->fallback(torch::CppFunction::makeFromBoxedFunction<&gather_before>());
      return library;
    } catch (const c10::Error& error) {
      base::fail(ErrorKind::environment, {}, "sharding",
                 "another library in this process uses the dispatch key {}, by which operators gather sharded "
                 "parameters: {}; link one copy of this library, or use no_shard",
                 c10::toString(kKey), error.what_without_backtrace());
    }
  }();
}

void replace_memory(const at::Tensor& parameter, at::DataPtr memory) {
  auto* storage = storage_of(parameter);
  const std::lock_guard lock(contexts_mutex);
  storage->*member_of(RefusesData()) = false;
  storage->set_data_ptr_noswap(std::move(memory));
}

c10::DispatchKeySet& keys_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->*KeySetOfTensor::member();
}

}  // namespace

void enable_gather_on_use(const at::Tensor& parameter) {
  register_fallback();
  keys_of(parameter) = keys_of(parameter).add(kKey);
}

void disable_gather_on_use(const at::Tensor& parameter) { keys_of(parameter) = keys_of(parameter).remove(kKey); }

void set_storage_memory(const c10::Storage& storage, void* memory, std::shared_ptr<const GatheredParameter> parameter) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  const bool is_absent = memory == nullptr && impl->nbytes() > 0;
  if (is_absent) {
    impl->get_extra_meta().custom_data_ptr_error_msg_ =
        "parameter " + parameter->name +
        " is sharded, so it has no memory here; use operators, or summon_full_params()";
  }
  at::DataPtr next(memory, new MemoryContext(std::move(parameter)), &delete_context, impl->device());
  const std::lock_guard lock(contexts_mutex);
  impl->*member_of(RefusesData()) = is_absent;
  impl->set_data_ptr_noswap(std::move(next));
}

void own_parameter_memory(const at::Tensor& parameter, const at::Tensor& values) {
  replace_memory(parameter, storage_of(values)->set_data_ptr({nullptr, values.device()}));
}

void share_parameter_memory(const at::Tensor& parameter, const at::Tensor& flat, int64_t offset) {
  void* memory = static_cast<char*>(flat.mutable_data_ptr()) + offset * flat.element_size();
  const auto release = [](void* storage) { delete static_cast<c10::Storage*>(storage); };
  replace_memory(parameter, {memory, new c10::Storage(flat.storage()), release, flat.device()});
}

void fail_without_owner(const std::string& name) {
  base::fail(ErrorKind::usage, {}, "sharding",
             "parameter {} is sharded, and the Accelerator that divided it no longer exists, so this rank has only a "
             "part of its values; before the Accelerator ends, save the model, or call free_memory() on all ranks, "
             "which makes the parameters whole",
             name);
}

bool fills_its_storage(const at::Tensor& parameter) {
  return parameter.storage_offset() == 0 && storage_of(parameter)->nbytes() == parameter.nbytes();
}

}  // namespace accelerate::sharding
