// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <csetjmp>
#include <cstdio>
#include <vector>
//
#include <jpeglib.h>
// depends on jpeglib.h
#include <jerror.h>

#include "accelerate/data/sources/image.hpp"

namespace accelerate::data {
namespace {

// Returns a * b / 255 with Pillow's rounding.
uint8_t scaled(int a, int b) {
  const int product = a * b + 128;
  return static_cast<uint8_t>((product + (product >> 8)) >> 8);
}

// Pillow's conversion. Adobe's programs store 255 - ink; Pillow assumes this of every CMYK file, with or without
// Adobe's marker.
void rgb_of_inverted_cmyk(const uint8_t* cmyk, size_t width, uint8_t* rgb) {
  for (size_t x = 0; x < width; ++x, cmyk += 4, rgb += 3) {
    const int white = cmyk[3];
    for (size_t c = 0; c < 3; ++c) rgb[c] = static_cast<uint8_t>(white - scaled(255 - cmyk[c], white));
  }
}

// libjpeg's error callback must not return, so it jumps to the start of a member function below. These functions have
// no local variables with destructors.
class JpegDecoder {
 public:
  explicit JpegDecoder(std::span<const uint8_t> file) : file_(file) {
    info_.err = jpeg_std_error(&errors_);
    errors_.error_exit = [](j_common_ptr info) { give_up(info); };
    errors_.emit_message = [](j_common_ptr info, int level) { warn(info, level); };
    progress_.progress_monitor = [](j_common_ptr info) { watch(info); };
    info_.client_data = this;
  }
  ~JpegDecoder() { jpeg_destroy_decompress(&info_); }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  /// Reads the header. \returns false on failure; see problem().
  bool start() {
    if (setjmp(jump_) != 0) return false;
    jpeg_create_decompress(&info_);
    info_.progress = &progress_;
    jpeg_mem_src(&info_, file_.data(), file_.size());
    jpeg_read_header(&info_, TRUE);
    info_.out_color_space = is_cmyk() ? JCS_CMYK : JCS_RGB;
    return true;
  }

  /// \param rows  [height, width, 3] uint8, written.
  /// \param cmyk  [width, 4] uint8, scratch memory; used only if is_cmyk().
  bool read(uint8_t* rows, uint8_t* cmyk) {
    if (setjmp(jump_) != 0) return false;
    jpeg_start_decompress(&info_);
    while (info_.output_scanline < info_.output_height) {
      uint8_t* const rgb = rows + size_t{info_.output_scanline} * info_.output_width * 3;
      JSAMPROW row = is_cmyk() ? cmyk : rgb;
      jpeg_read_scanlines(&info_, &row, 1);
      if (is_cmyk()) rgb_of_inverted_cmyk(cmyk, info_.output_width, rgb);
    }
    jpeg_finish_decompress(&info_);
    return true;
  }

  [[nodiscard]] int64_t height() const { return info_.image_height; }
  [[nodiscard]] int64_t width() const { return info_.image_width; }
  [[nodiscard]] bool is_cmyk() const {
    return info_.jpeg_color_space == JCS_CMYK || info_.jpeg_color_space == JCS_YCCK;
  }
  [[nodiscard]] const char* problem() const { return problem_.data(); }

 private:
  static JpegDecoder& of(j_common_ptr info) { return *static_cast<JpegDecoder*>(info->client_data); }

  [[noreturn]] static void give_up(j_common_ptr info) {
    info->err->format_message(info, of(info).problem_.data());
    std::longjmp(of(info).jump_, 1);
  }

  // All warnings except these four mean that libjpeg invented pixels, which is an error.
  static void warn(j_common_ptr info, int level) {
    if (level >= 0) return;
    switch (info->err->msg_code) {
      case JWRN_ADOBE_XFORM:
      case JWRN_BOGUS_PROGRESSION:
      case JWRN_EXTRANEOUS_DATA:
      case JWRN_NOT_SEQUENTIAL:
        return;
      default:
        give_up(info);
    }
  }

  // Limits the scans: a small file may have thousands, and each one processes the whole image.
  static void watch(j_common_ptr info) {
    constexpr int max_scans = 500;
    if (info->is_decompressor == 0 || reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= max_scans) return;
    std::snprintf(of(info).problem_.data(), of(info).problem_.size(), "more than %d scans", max_scans);
    std::longjmp(of(info).jump_, 1);
  }

  std::span<const uint8_t> file_;
  jpeg_decompress_struct info_{};
  jpeg_error_mgr errors_{};
  jpeg_progress_mgr progress_{};
  std::jmp_buf jump_{};
  std::array<char, JMSG_LENGTH_MAX> problem_{};
};

}  // namespace

at::Tensor decode_jpeg(std::span<const uint8_t> file) {
  JpegDecoder decoder(file);
  if (!decoder.start()) throw BrokenImage(decoder.problem());
  // A block of 8x8 pixels takes at least one bit.
  check_pixels(decoder.height(), decoder.width(), file.size(),
               static_cast<uint64_t>(decoder.height() * decoder.width()) / 512);
  std::vector<uint8_t> rows(static_cast<size_t>(decoder.height() * decoder.width() * 3));
  std::vector<uint8_t> cmyk(decoder.is_cmyk() ? static_cast<size_t>(decoder.width()) * 4 : 0);
  if (!decoder.read(rows.data(), cmyk.data())) throw BrokenImage(decoder.problem());
  return planes_of(rows.data(), decoder.height(), decoder.width());
}

}  // namespace accelerate::data
