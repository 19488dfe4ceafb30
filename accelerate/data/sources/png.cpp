// SPDX-License-Identifier: Apache-2.0
#include <png.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>

#include "accelerate/data/sources/image.hpp"

namespace accelerate::data {
namespace {

// libpng's error callback jumps, as in JpegDecoder: functions that call libpng have no locals with destructors.
class PngDecoder {
 public:
  explicit PngDecoder(std::span<const uint8_t> file) : file_(file) {}
  ~PngDecoder() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  /// Reads the header. \returns false on failure; see problem().
  bool start() {
    if (setjmp(jump_) != 0) return false;
    png_ = png_create_read_struct(
        PNG_LIBPNG_VER_STRING, this, [](png_structp png, png_const_charp text) { give_up(png, text); },
        [](png_structp, png_const_charp) {});
    if (png_ == nullptr) return refuse("libpng cannot be used: it is another version than its header");
    info_ = png_create_info_struct(png_);
    png_set_read_fn(png_, this, [](png_structp png, png_bytep to, size_t count) { of(png).take(to, count); });
    png_read_info(png_, info_);
    return true;
  }

  /// \param rows  [height] pointers to width * 3 bytes.
  bool read(png_bytepp rows) {
    if (setjmp(jump_) != 0) return false;
    png_set_strip_16(png_);
    if (png_get_color_type(png_, info_) == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
    if ((png_get_color_type(png_, info_) & PNG_COLOR_MASK_COLOR) == 0) {
      png_set_expand_gray_1_2_4_to_8(png_);
      png_set_gray_to_rgb(png_);
    }
    png_set_strip_alpha(png_);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    if (png_get_rowbytes(png_, info_) != static_cast<size_t>(width()) * 3)
      return refuse("it cannot be converted to RGB");
    png_read_image(png_, rows);
    png_read_end(png_, nullptr);
    return true;
  }

  [[nodiscard]] int64_t height() const { return png_get_image_height(png_, info_); }
  [[nodiscard]] int64_t width() const { return png_get_image_width(png_, info_); }
  /// Size of the packed pixels.
  [[nodiscard]] uint64_t bytes() const { return png_get_rowbytes(png_, info_) * static_cast<uint64_t>(height()); }
  [[nodiscard]] const char* problem() const { return problem_.data(); }

 private:
  static PngDecoder& of(png_structp png) { return *static_cast<PngDecoder*>(png_get_io_ptr(png)); }

  bool refuse(const char* text) {
    std::snprintf(problem_.data(), problem_.size(), "%s", text);
    return false;
  }

  [[noreturn]] static void give_up(png_structp png, png_const_charp text) {
    auto& decoder = *static_cast<PngDecoder*>(png_get_error_ptr(png));
    decoder.refuse(text);
    std::longjmp(decoder.jump_, 1);
  }

  void take(png_bytep to, size_t count) {
    if (count > file_.size()) png_error(png_, "the file ends within the image");
    std::memcpy(to, file_.data(), count);
    file_ = file_.subspan(count);
  }

  std::span<const uint8_t> file_;  // unread part
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf jump_{};
  std::array<char, 160> problem_{};
};

}  // namespace

at::Tensor decode_png(std::span<const uint8_t> file) {
  PngDecoder decoder(file);
  if (!decoder.start()) throw BrokenImage(decoder.problem());
  // Deflate compresses at most 1032 to 1.
  check_pixels(decoder.height(), decoder.width(), file.size(), decoder.bytes() / 1032);
  const auto row_bytes = static_cast<size_t>(decoder.width()) * 3;
  std::vector<uint8_t> pixels(static_cast<size_t>(decoder.height()) * row_bytes);
  std::vector<png_bytep> rows(static_cast<size_t>(decoder.height()));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = pixels.data() + i * row_bytes;
  if (!decoder.read(rows.data())) throw BrokenImage(decoder.problem());
  return planes_of(pixels.data(), decoder.height(), decoder.width());
}

}  // namespace accelerate::data
