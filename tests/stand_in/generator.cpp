// SPDX-License-Identifier: Apache-2.0
#include "tests/stand_in/generator.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include "tests/stand_in/world.hpp"

namespace stand_in {
namespace {

class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex device)
      : GeneratorImpl(c10::Device(kType, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host(at::detail::createCPUGenerator()) {}

  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "standin: a generator without offset"); }
  uint64_t get_offset() const override { TORCH_CHECK(false, "standin: a generator without offset"); }
  void set_state(const c10::TensorImpl& state) override { host.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return host.unsafeGetGeneratorImpl()->get_state(); }

  at::Generator host;

 private:
  Generator* clone_impl() const override {
    auto* const copy = new Generator(device().index());  // NOLINT: required by the interface
    copy->host = host.clone();
    return copy;
  }
};

}  // namespace

at::Generator new_generator(c10::DeviceIndex device) { return at::make_generator<Generator>(device); }

const at::Generator& default_generator(c10::DeviceIndex device) {
  return world().generators.at(static_cast<size_t>(device));
}

at::Generator host_generator(const at::Generator& generator) { return generator.get<Generator>()->host; }

}  // namespace stand_in
