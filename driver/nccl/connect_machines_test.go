package nccl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/sys/systest"
)

// machinesVariable is an environment variable. If it is set, the tests treat each rank as if it ran
// on a separate machine. On real GPUs, this needs fabric handles and an IMEX channel
// (bench/gpu/fabric.sh).
const machinesVariable = "SYMMEM_TEST_MACHINES"

// isOneMachine reports whether the ranks share a machine. Otherwise they compare calls over TCP
// before they launch them, so tests with different orders of launches must disable the comparison.
func isOneMachine() bool { return os.Getenv(machinesVariable) == "" }

func applyMachinesVariable() {
	if !isOneMachine() {
		hostID = func(rank int) string { return fmt.Sprintf("machine %d", rank) }
	}
}

// fabricTests matches tests of the direct path that also work when the ranks are on separate
// machines. The script bench/gpu/fabric.sh runs more.
var fabricTests = strings.Join([]string{
	"^TestStreamsTakeTurns$", "^TestPathsMix$", "^TestLargeCallsAreCaptured$",
	"^TestGroupsRunConcurrently$", "^TestNormsAreCaptured$", "^TestNormsThatDifferFail$",
}, "|")

// mismatchTests matches contract tests in which ranks launch different calls.
const mismatchTests = "^TestContract$/^mistakes$/MismatchError_and/^(count|path|type)_of"

func TestDirectPathBetweenMachinesOfAFabric(t *testing.T) {
	needFabric(t)
	for _, tests := range []string{fabricTests, mismatchTests} {
		c := systest.Command(t, 5*time.Minute, os.Args[0], "-test.short", "-test.timeout=4m",
			"-test.v", "-test.run="+tests)
		c.Env = append(os.Environ(), machinesVariable+"=1", "SOFTGPU_FABRIC=1")
		output, err := c.CombinedOutput()
		if err != nil || !strings.Contains(string(output), "--- PASS") {
			t.Errorf("%v\n%s", err, output)
		}
	}
}

// needFabric skips a test if the GPUs do not support fabric handles, or if the process sees no IMEX
// channel. It fails the test if they are unavailable for another reason.
func needFabric(t *testing.T) {
	t.Helper()
	if usesSoftGPU(t) {
		return
	}
	d := newTestGroup(t, 1, time.Minute).opened[0].device
	reason := d.gpu.NoFabricReason
	if reason == "" {
		return
	}
	channels, globErr := filepath.Glob("/dev/nvidia-caps-imex-channels/channel*")
	hasNoChannel := strings.Contains(reason, "IMEX channel") && len(channels) == 0 && globErr == nil
	if !hasNoChannel && !strings.Contains(reason, "does not support fabric handles") {
		t.Fatalf("fabric handles are unavailable: %v (IMEX channels %q, glob error %v)", reason, channels,
			globErr)
	}
	t.Skip(fmt.Errorf("fabric handles: %s: %w", reason, driver.ErrUnsupported))
}

// rerunOnSeparateMachines runs the test in a child process with machinesVariable set, and returns
// true in that process.
func rerunOnSeparateMachines(t *testing.T) bool {
	t.Helper()
	if !isOneMachine() {
		return true
	}
	needFabric(t)
	return inChildProcess(t, machinesVariable+"=1", "SOFTGPU_FABRIC=1")
}

func TestTimeoutNamesAMissingRankOfAnotherMachine(t *testing.T) {
	if !rerunOnSeparateMachines(t) {
		return
	}
	w := newTestGroup(t, 2, time.Second)
	group := driver.GroupConfig{ID: "alone", Ranks: []int{0, 1}}
	_, err := w.opened[0].device.Connect(t.Context(), group)
	timeoutErr := (*driver.TimeoutError)(nil)
	if !errors.As(err, &timeoutErr) || !slices.Equal(timeoutErr.Missing, []int{1}) {
		t.Errorf("Connect = %v, want a TimeoutError that names rank 1", err)
	}
}

// TestRecordedCallsBetweenMachinesAreCompared records different calls. Direct kernels compare calls
// in replays, and all other calls are compared while they are recorded.
func TestRecordedCallsBetweenMachinesAreCompared(t *testing.T) {
	if !rerunOnSeparateMachines(t) {
		return
	}
	w := newGroup(t, 2, 10*time.Second)
	w.must(func(m *testRank) error {
		m.group.SetCheck(true)
		foreign, err := m.newForeignStreams(1)
		if err != nil {
			return err
		}
		path := []driver.Path{driver.PathDirect, driver.PathPlain}[m.rank]
		plan, err := prepare(m.group, driver.Call{
			Operation: driver.Barrier, DataType: driver.Uint8, Path: path, Digest: uint64(m.rank),
		})
		err = errors.Join(err, foreign[0].capture(func() error {
			recorded := m.group.(driver.Recorder).Record(foreign[0].stream, plan)
			if mismatch := (*driver.MismatchError)(nil); !errors.As(recorded, &mismatch) {
				t.Errorf("Record of a mismatched call on rank %d = %v, want a MismatchError", m.rank,
					recorded)
			}
			return nil
		}))
		return errors.Join(err, finish(foreign...))
	})
}
