// SPDX-License-Identifier: Apache-2.0
// Compiles the non-inline part of fmt, because LibTorch ships fmt's headers without a library that exports it. The
// instantiated templates are those that fmt 12 declares but does not define in its headers.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
template auto locale_ref::get<std::locale>() const -> std::locale;
namespace detail {
template auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;
template auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template auto thousands_sep_impl(locale_ref) -> thousands_sep_result<wchar_t>;
template auto decimal_point_impl(locale_ref) -> char;
template auto decimal_point_impl(locale_ref) -> wchar_t;
}  // namespace detail
FMT_END_NAMESPACE
