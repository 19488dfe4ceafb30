// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/checksum.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "accelerate/device/absent_memory.hpp"

namespace accelerate::nn {
namespace {

constexpr int64_t kChunk = 1 << 20;  // number of values with individual position weights
constexpr uint64_t kOdd = 0x9E3779B97F4A7C15ULL;
constexpr uint64_t kStep = 0xD1B54A32D192ED03ULL;

int64_t as_signed(uint64_t bits) { return static_cast<int64_t>(bits); }
uint64_t as_unsigned(int64_t bits) { return static_cast<uint64_t>(bits); }

/// Powers of two differ only in their highest bits. The multiplication and the shift move the difference to lower bits.
uint64_t mixed(uint64_t bits) {
  bits *= kOdd;
  return as_unsigned(as_signed(bits) >> 32) ^ bits;
}
uint64_t weight_of(uint64_t place) { return (place * kStep) | 1U; }

at::ScalarType integer_of(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 1:
      return at::kChar;
    case 2:
      return at::kShort;
    case 4:
      return at::kInt;
    default:
      return at::kLong;
  }
}

/// The bits of every value, [n] integers as wide as the values.
at::Tensor bits_of(const at::Tensor& tensor) {
  const at::Tensor real = tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
  return real.resolve_neg().contiguous().view(integer_of(real)).flatten();
}

template <typename Integer>
uint64_t sum_on_host(const at::Tensor& bits) {
  uint64_t sum = 0;
  uint64_t place = 0;
  for (const Integer value : std::span(bits.const_data_ptr<Integer>(), static_cast<size_t>(bits.numel()))) {
    sum += mixed(as_unsigned(static_cast<int64_t>(value))) * weight_of(place++);
  }
  return sum;
}

uint64_t sum_on_host_of(const at::Tensor& bits) {
  switch (bits.element_size()) {
    case 1:
      return sum_on_host<int8_t>(bits);
    case 2:
      return sum_on_host<int16_t>(bits);
    case 4:
      return sum_on_host<int32_t>(bits);
    default:
      return sum_on_host<int64_t>(bits);
  }
}

/// The same sum with operators; integers wrap in both.
at::Tensor sum_on_device_of(const at::Tensor& bits, const at::Tensor& weights) {
  at::Tensor mix = bits.to(at::kLong) * as_signed(kOdd);
  mix = mix.bitwise_right_shift(32).bitwise_xor_(mix);
  return mix.mul_(weights.narrow(0, 0, mix.numel())).sum();
}

at::Tensor weights_on(at::Device device, int64_t count) {
  return at::arange(count, at::TensorOptions(at::kLong).device(device)).mul_(as_signed(kStep)).bitwise_or_(1);
}

at::Tensor checksum_of_bits(const at::Tensor& bits) {
  const int64_t values = bits.numel();
  if (bits.is_cpu()) {
    device::require_data(bits);
    uint64_t sum = 0;
    for (int64_t at = 0; at < values; at += kChunk) {
      sum = mixed(sum) + sum_on_host_of(bits.narrow(0, at, std::min(kChunk, values - at)));
    }
    return at::zeros({}, at::kLong).fill_(as_signed(sum));
  }
  at::Tensor sum = at::zeros({}, bits.options().dtype(at::kLong));
  const at::Tensor weights = weights_on(bits.device(), std::min(kChunk, values));
  for (int64_t at = 0; at < values; at += kChunk) {
    const at::Tensor mix = sum * as_signed(kOdd);
    sum = mix.bitwise_right_shift(32).bitwise_xor_(mix) +
          sum_on_device_of(bits.narrow(0, at, std::min(kChunk, values - at)), weights);
  }
  return sum;
}

}  // namespace

at::Tensor checksum(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach();
  if (plain.layout() != at::kStrided) {
    const at::Tensor sparse = plain.coalesce();
    return checksum_of_bits(bits_of(sparse._indices())) * 31 + checksum_of_bits(bits_of(sparse._values()));
  }
  return checksum_of_bits(bits_of(plain));
}

}  // namespace accelerate::nn
