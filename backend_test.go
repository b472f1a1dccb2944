package symmem_test

import (
	"cmp"
	"errors"
	"math"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"symmem"
	"symmem/driver/nccl"
)

// backendVariable names the environment variable that chooses the backend of all tests.
const backendVariable = "SYMMEM_TEST_BACKEND"

// withBackend returns o, with the backend of the tests if o names none.
func withBackend(o symmem.Options) symmem.Options {
	if o.Backend == "" {
		o.Backend = cmp.Or(os.Getenv(backendVariable), "host")
	}
	return o
}

// localRanks returns the number of ranks for which the backend has devices. The host has no
// limit. On a machine with one device, the result is 2, and tests with 2 ranks skip themselves.
func localRanks(tb testing.TB) int {
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

// smallestRefusedSize is the size of the smallest local world that the backend has refused, or 0 if
// it has refused none. Later tests do not try to open worlds of this size, because their ranks
// would wait for a rank that has no device.
var smallestRefusedSize atomic.Int64

// openRanks opens a world whose ranks are goroutines. It skips the test if the backend has too few
// devices.
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

// needRanks skips the test if the backend has too few devices. Tests that call runRanks do not need
// it.
func needRanks(t *testing.T, ranks int) {
	t.Helper()
	runRanks(t, ranks, symmem.Options{}, func(*rank) {})
}

// openAlone opens a world of one rank, for which every backend has a device.
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

// requireAddressable skips the test unless the CPU can address device memory, which collectives on
// Go slices require.
func (r *rank) requireAddressable() {
	if !r.Device().Addressable {
		r.skip("the CPU cannot address device memory", symmem.ErrUnsupported)
	}
}

// skipUnsupported skips the test if err is ErrUnsupported. Any other error fails the test.
func (r *rank) skipUnsupported(err error) {
	r.t.Helper()
	if errors.Is(err, symmem.ErrUnsupported) {
		r.skip("not supported by the backend", err)
	}
	r.ok(err)
}

// lacksWindowPath reports whether a call on windows takes the plain path because the backend has no
// window path for it.
func lacksWindowPath(e symmem.Explanation) bool {
	return e.Path == "plain" && strings.HasSuffix(e.Why, symmem.ErrUnsupported.Error())
}
