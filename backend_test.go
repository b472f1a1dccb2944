package symmem_test

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"symmem"
	"symmem/driver/nccl"
)

// The tests run with one backend. By default, this is the host backend, whose devices are parts of
// the CPU's memory. With SYMMEM_TEST_BACKEND=nccl, each rank needs a GPU. A test that needs more
// ranks than there are GPUs is skipped.

// backendVariable is the environment variable that selects the backend.
const backendVariable = "SYMMEM_TEST_BACKEND"

// withBackend returns the options with the backend of the tests. If the options already name a
// backend, it stays.
func withBackend(o symmem.Options) symmem.Options {
	if o.Backend == "" {
		o.Backend = cmp.Or(os.Getenv(backendVariable), "host")
	}

	return o
}

// isHost reports whether the tests run with the host backend.
func isHost() bool { return withBackend(symmem.Options{}).Backend == "host" }

// skipOnHost skips a test that is only meaningful with the backend nccl. On a machine without a
// GPU, package internal/softgpu/roottest runs this test with nccl on a simulated GPU.
func skipOnHost(tb testing.TB, reason string) {
	tb.Helper()
	if isHost() {
		tb.Skip(fmt.Errorf("%s: %w", reason, symmem.ErrUnsupported))
	}
}

// availableRanks returns the number of ranks that the backend can run, one per device. It has no
// limit on the host backend. The number is at least 2: with fewer devices, a test that opens 2
// ranks is skipped. availableRanks fails the test if it cannot count the devices.
func availableRanks(tb testing.TB) int {
	tb.Helper()
	if isHost() {
		return math.MaxInt
	}

	n, err := nccl.Backend{}.LocalRanks()
	if err != nil {
		tb.Fatal(err)
	}

	return max(2, n)
}

// smallestRefusedSize is the number of ranks of the smallest local world that the backend has
// refused, or 0. (The ranks of a local world are goroutines.) Tests skip worlds of this size or
// more, in which ranks would wait for a rank without a device.
var smallestRefusedSize atomic.Int64

// openRanks opens a local world of n ranks. It skips the test if there are too few devices, and
// fails it on another error. The caller must close the Runtimes.
func openRanks(t *testing.T, n int, o symmem.Options) []*symmem.Runtime {
	t.Helper()
	smallestRefused := smallestRefusedSize.Load()
	isRefused := smallestRefused != 0 && int64(n) >= smallestRefused
	if isRefused {
		t.Skipf("the backend has no devices for %d ranks", n)
	}

	runtimes, err := symmem.OpenLocal(t.Context(), n, withBackend(o))
	if errors.Is(err, symmem.ErrUnsupported) {
		smallestRefusedSize.Store(int64(n))
		t.Skipf("the backend has no devices for %d ranks: %v", n, err)
	}

	if err != nil {
		t.Fatal(err)
	}

	return runtimes
}

// requireRanks skips the test if there are too few devices. To find out, it opens and closes a
// world.
func requireRanks(t *testing.T, ranks int) {
	t.Helper()
	doNothing := func(*rank) {}
	runRanks(t, ranks, symmem.Options{}, doNothing)
}

// openAlone opens a world of one rank with default options. The world closes at the end of the
// test.
func openAlone(tb testing.TB) *symmem.Runtime {
	tb.Helper()
	return openAloneWith(tb, symmem.Options{})
}

// openAloneWith opens a world of one rank. At the end of the test, the world closes and frees its
// live buffers. openAloneWith fails the test on an error.
func openAloneWith(tb testing.TB, o symmem.Options) *symmem.Runtime {
	tb.Helper()
	o.Size = 1
	rt, err := symmem.Open(tb.Context(), withBackend(o))
	if err != nil {
		tb.Fatal(err)
	}

	tb.Cleanup(func() {
		symmem.FreeLive(rt)
		if err := rt.Close(); err != nil {
			tb.Error(err)
		}
	})
	return rt
}

// requireAddressable skips the test unless the CPU can address device memory, as collectives on Go
// slices require.
func (r *rank) requireAddressable() {
	if !r.Device().Addressable {
		r.skip("the CPU cannot address device memory", symmem.ErrUnsupported)
	}
}

// skipUnsupported skips the test for ErrUnsupported, and fails it for any other error.
func (r *rank) skipUnsupported(err error) {
	r.t.Helper()
	if errors.Is(err, symmem.ErrUnsupported) {
		r.skip("not supported by the backend", err)
	}

	r.ok(err)
}

// lacksWindowPath reports whether a call takes the plain path because the backend has no window
// path for it. (A path is the way in which a call runs.)
func lacksWindowPath(e symmem.Explanation) bool {
	return e.Path == "plain" && strings.HasSuffix(e.Why, symmem.ErrUnsupported.Error())
}
