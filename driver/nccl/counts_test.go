package nccl

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/ras"
)

// TestNCCLIsQueriedOnlyIfSafe makes one rank skip an NCCL collective, and checks whether symmem
// connects to the address in NCCL_RAS_ADDR.
func TestNCCLIsQueriedOnlyIfSafe(t *testing.T) {
	requireSoftGPU(t, "has a configurable version of NCCL")
	for version, isSafe := range map[string]bool{"22809": false, "22902": true} {
		t.Run(version, func(t *testing.T) {
			if !inChildProcess(t, "SOFTGPU_NCCL="+version) {
				return
			}
			listener, err := net.Listen("tcp", "localhost:0")
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			t.Setenv(ras.Variable, listener.Addr().String())
			connected := make(chan struct{}, 1)
			go func() {
				for conn, err := listener.Accept(); err == nil; conn, err = listener.Accept() {
					conn.Close()
					select {
					case connected <- struct{}{}:
					default:
					}
				}
			}()
			skipCollective(newGroup(t, 2, time.Second), func(*testRank, error) error { return nil })
			if wasQueried := len(connected) > 0; wasQueried != isSafe {
				t.Errorf("NCCL was queried: %t, want %t", wasQueried, isSafe)
			}
		})
	}
}

// TestTimeoutHasCountsOfNCCL makes one rank skip an NCCL collective, and checks that the other
// rank's TimeoutError contains NCCL's operation counts.
func TestTimeoutHasCountsOfNCCL(t *testing.T) {
	if usesSoftGPU(t) {
		t.Skip("not supported here: the NCCL of the software GPU has no RAS")
	}
	w := newGroup(t, 2, 6*time.Second)
	if w.ranks[0].group.(*communicator).faults.rasID == "" {
		t.Skip("not supported here: this version of NCCL can crash if it is queried")
	}
	skipCollective(w, func(m *testRank, err error) error {
		if m.rank == 1 {
			return err
		}
		var timeoutErr *driver.TimeoutError
		if !errors.As(err, &timeoutErr) {
			return failuref("Synchronize = %v, want a TimeoutError", err)
		}
		t.Log(timeoutErr)
		if !strings.Contains(timeoutErr.Counts, "AllReduce: ") ||
			!strings.Contains(timeoutErr.Error(), timeoutErr.Counts) {
			return failuref("got counts %q in %v, want counts of AllReduce", timeoutErr.Counts, timeoutErr)
		}
		return nil
	})
}

// skipCollective launches one NCCL collective on rank 1 and two on rank 0, and passes each rank's
// error of Synchronize to check.
func skipCollective(w *testGroup, check func(m *testRank, err error) error) {
	w.t.Helper()
	w.withSum(1024, func(m *testRank, p *repeatedSum) error {
		m.group.SetCheck(false) // because otherwise rank 0's second call would not reach NCCL
		for range 2 - m.rank {
			if err := p.launch(m.group, m.stream, driver.PathPlain); err != nil {
				return err
			}
		}
		return check(m, m.stream.Synchronize(w.t.Context()))
	})
}
