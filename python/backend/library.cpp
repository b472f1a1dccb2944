#include "library.hpp"

#include <dlfcn.h>

#include <mutex>

#include <c10/util/Exception.h>

namespace symmem_c10d {
namespace {

std::mutex failure_mutex;
std::string failure;

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  TORCH_CHECK(
      function != nullptr, "libsymmem.so has no function ", name,
      "; install both libraries from the same wheel");
}

// Reads a string of unknown length from a function of symmem.h.
std::string read(int (*function)(size_t, char*, size_t*)) {
  std::string text(1024, '\0');
  for (;;) {
    size_t length = 0;
    function(text.size(), text.data(), &length);
    if (length < text.size()) {
      text.resize(length);
      return text;
    }
    text.resize(length + 1);
  }
}

} // namespace

Library::Library(const std::string& path, const Interpreter& interpreter)
    : interpreter(interpreter) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(library != nullptr, "loading ", path, ": ", dlerror());
  find(library, "symmem_last_error", last_error);
  find(library, "symmem_last_error_json", last_error_json);
  find(library, "symmem_poll", poll);
  find(library, "symmem_call", call);
  find(library, "symmem_stream_forget", stream_forget);
  find(library, "symmem_event_done", event_done);
  find(library, "symmem_event_synchronize", event_synchronize);
  find(library, "symmem_event_wait", event_wait);
  find(library, "symmem_event_close", event_close);
  find(library, "symmem_world_group_open", world_group_open);
  find(library, "symmem_group_set_timeout", group_set_timeout);
  find(library, "symmem_pool_open", pool_open);
  find(library, "symmem_alloc_on", alloc_on);
  find(library, "symmem_free", free);
  find(library, "symmem_register_pending", register_pending);
  find(library, "symmem_locate", locate);
  find(library, "symmem_peer_addresses", peer_addresses);
  find(library, "symmem_group_abort", group_abort);
  find(library, "symmem_group_error", group_error);
}

void Library::fail(int code) const {
  std::string text = read(last_error);
  {
    std::lock_guard<std::mutex> lock(failure_mutex);
    failure = read(last_error_json);
  }
  if (text.empty()) {
    text = "symmem failed with code " + std::to_string(code);
  }
  if (code == SYMMEM_ERR_INTERRUPTED) {
    interrupted(text);
  }
  if (code == SYMMEM_ERR_TIMEOUT) {
    text = "symmem: Timed out waiting for other ranks: " + text; // Programs search for "Timed out".
  }
  C10_THROW_ERROR(DistBackendError, text);
}

// PyTorch cannot pass a KeyboardInterrupt through C++. This function therefore sets Python's
// interrupt flag, so that Python raises KeyboardInterrupt while it handles the DistBackendError.
void Library::interrupted(const std::string& text) const {
  if (interpreter.interrupted() != 0) {
    interpreter.interrupt();
  }
  C10_THROW_ERROR(DistBackendError, text);
}

std::string last_failure() {
  std::lock_guard<std::mutex> lock(failure_mutex);
  return failure;
}

} // namespace symmem_c10d
