package nccl

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/nccl"
	"symmem/internal/ras"
)

// NCCL counts the collectives that it has launched on each rank. Its RAS (monitoring) subsystem
// returns these counts to a query, which is sent over a connection. After a timeout, symmem sends a
// query, and puts the counts into the TimeoutError. Some versions of NCCL can crash because of a
// query. symmem does not query them.

// TestNCCLIsQueried checks that symmem queries RAS after a timeout.
func TestNCCLIsQueried(t *testing.T) {
	const version = "22902" // 2.29.2
	const wantQuery = true
	checkQueryOfNCCL(t, version, wantQuery)
}

// TestOldNCCLIsNotQueried checks that symmem does not query a version of NCCL that a query can
// crash.
func TestOldNCCLIsNotQueried(t *testing.T) {
	const version = "22809" // 2.28.9
	const wantQuery = false
	checkQueryOfNCCL(t, version, wantQuery)
}

// checkQueryOfNCCL checks whether symmem queries RAS. It runs in two processes:
//
//   - The child process uses the given version of NCCL. One of its ranks skips a collective, so
//     that the other rank times out. A query then connects to the address in NCCL_RAS_ADDR.
//   - The parent process listens at this address, and checks whether there was a connection.
func checkQueryOfNCCL(t *testing.T, version string, wantQuery bool) {
	t.Helper()
	requireSoftGPU(t, "has a configurable version of NCCL")
	listener, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	address := listener.Addr().String()
	if inChildProcess(t, "SOFTGPU_NCCL="+version, ras.Variable+"="+address) {
		ignoreError := func(*testRank, error) error { return nil } // ranks get a TimeoutError
		skipCollective(newGroup(t, 2, time.Second), ignoreError)
		return
	}

	isQueried := hasPendingConnection(t, listener)
	if isQueried != wantQuery {
		t.Errorf("NCCL %s was queried: %t, want %t", version, isQueried, wantQuery)
	}
}

// hasPendingConnection reports whether a listener has a connection that has not been accepted. To
// find out without waiting, it makes another connection and checks whether that is the first.
func hasPendingConnection(t *testing.T, listener net.Listener) bool {
	t.Helper()
	own, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	first, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	isOwn := first.RemoteAddr().String() == own.LocalAddr().String()
	return !isOwn
}

// TestTimeoutHasCountsOfNCCL makes one rank skip an NCCL collective, and checks that the other
// rank's TimeoutError contains NCCL's operation counts.
func TestTimeoutHasCountsOfNCCL(t *testing.T) {
	if usesSoftGPU(t) {
		t.Skip("not supported here: the NCCL of the software GPU has no RAS")
	}

	w := newGroup(t, 2, 6*time.Second)
	device := w.opened[0].device
	version, versionText := device.nccl.Version()
	if nccl.RASOverflow.Affects(version, device.gpu.Major) {
		t.Skip(fmt.Errorf("NCCL %s must not be queried (nccl.RASOverflow): %w", versionText,
			driver.ErrUnsupported))
	}

	skipCollective(w, func(m *testRank, err error) error {
		if m.rank == 1 { // has launched only the complete collective
			return err
		}

		var timeoutErr *driver.TimeoutError
		if !errors.As(err, &timeoutErr) {
			return failuref("Synchronize = %v, want a TimeoutError", err)
		}

		t.Log(timeoutErr)
		if !strings.Contains(timeoutErr.Counts, "AllReduce: ") {
			return failuref("Counts = %q, want counts of AllReduce", timeoutErr.Counts)
		}

		if !strings.Contains(timeoutErr.Error(), timeoutErr.Counts) {
			return failuref("error = %v, want an error that contains %q", timeoutErr, timeoutErr.Counts)
		}

		return nil
	})
}

// skipCollective launches one NCCL collective on rank 1 and two on rank 0, so that rank 0 times
// out. It passes each rank's error of Synchronize to check. The test fails if check returns an
// error.
func skipCollective(w *testGroup, check func(m *testRank, err error) error) {
	w.t.Helper()
	w.withSum(1024, func(m *testRank, p *repeatedSum) error {
		m.group.SetCheck(false) // otherwise rank 0's second call would not reach NCCL
		callCount := 2
		if m.rank == 1 {
			callCount = 1
		}

		for range callCount {
			if err := p.launch(m.group, m.stream, driver.PathPlain); err != nil {
				return err
			}
		}

		return check(m, m.stream.Synchronize(w.t.Context()))
	})
}
