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

// backendVariable is the environment variable for the backend of all tests.
const backendVariable = "SYMMEM_TEST_BACKEND"

func withBackend(o symmem.Options) symmem.Options {
	if o.Backend == "" {
		o.Backend = cmp.Or(os.Getenv(backendVariable), "host")
	}
	return o
}

// skipOnHost skips a test that is only meaningful with the backend nccl. Package
// internal/softgpu/roottest runs the tests with nccl, and does not skip it.
func skipOnHost(tb testing.TB, reason string) {
	tb.Helper()
	if withBackend(symmem.Options{}).Backend == "host" {
		tb.Skip(fmt.Errorf("%s: %w", reason, symmem.ErrUnsupported))
	}
}

// availableRanks returns the number of ranks that the backend can run. With one device it is 2, so
// that tests with 2 ranks skip themselves.
func availableRanks(tb testing.TB) int {
	tb.Helper()
	if withBackend(symmem.Options{}).Backend == "host" {
		return math.MaxInt
	}
	n, err := nccl.Backend{}.LocalRanks()
	if err != nil {
		tb.Fatal(err)
	}
	return max(2, n)
}

// smallestRefusedSize is the smallest size of a local world that the backend has refused, or 0.
// Later tests do not open worlds of this size: their ranks would wait for a rank without a device.
var smallestRefusedSize atomic.Int64

// openRanks opens a world whose ranks are goroutines, or skips the test without enough devices.
func openRanks(t *testing.T, n int, o symmem.Options) []*symmem.Runtime {
	t.Helper()
	if smallest := smallestRefusedSize.Load(); smallest != 0 && int64(n) >= smallest {
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

// requireRanks skips the test without enough devices, as runRanks does.
func requireRanks(t *testing.T, ranks int) {
	t.Helper()
	runRanks(t, ranks, symmem.Options{}, func(*rank) {})
}

// openAlone opens a world of one rank.
func openAlone(tb testing.TB) *symmem.Runtime {
	tb.Helper()
	return openAloneWith(tb, symmem.Options{})
}

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

// lacksWindowPath reports whether the backend has no window path for the call.
func lacksWindowPath(e symmem.Explanation) bool {
	return e.Path == "plain" && strings.HasSuffix(e.Why, symmem.ErrUnsupported.Error())
}
