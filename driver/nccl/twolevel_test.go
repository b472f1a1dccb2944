package nccl

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/formula"
	"symmem/internal/dl"
)

// simulateTwoMachines makes it appear as if half of the ranks ran on another machine.
func simulateTwoMachines(t *testing.T, ranks int) {
	t.Helper()
	original := hostID
	t.Cleanup(func() { hostID = original })
	hostID = func(rank int) string { return fmt.Sprintf("machine %d", 2*rank/ranks) }
}

// twoLevelGroup is a group on two simulated machines. Each rank has registered two regions: the
// first one holds the input and the second one the output.
type twoLevelGroup struct {
	*testGroup
	inputs [][]byte
}

const twoLevelBytes = 1 << 20

// newTwoLevelGroup opens a group on two simulated machines. It registers one of each rank's two
// regions before it calls UseTwoLevels, and the other one after that.
func newTwoLevelGroup(t *testing.T, ranks int) *twoLevelGroup {
	t.Helper()
	simulateTwoMachines(t, ranks)
	w := &twoLevelGroup{testGroup: newTestGroup(t, ranks, 20*time.Second)}
	w.regroup()
	w.must(func(m *testRank) error {
		for name := range uint32(2) {
			s, err := m.mapRegion(twoLevelBytes)
			if err == nil && name == 1 {
				err = m.group.(driver.TwoLevels).UseTwoLevels(t.Context())
			}

			if err == nil {
				err = m.register(w.testGroup, s, name)
			}

			if err != nil {
				return err
			}
		}

		return nil
	})
	return w
}

// fill fills the inputs with random extreme elements of a type.
func (w *twoLevelGroup) fill(dataType driver.DataType) {
	w.t.Helper()
	random := newRandom(w.t)
	w.inputs = extremes(dataType, random, len(w.ranks), twoLevelBytes/8/dataType.Size())
	w.must(func(m *testRank) error {
		copy(m.pinned, w.inputs[m.rank])
		return errors.Join(m.stream.Copy(m.regions[0].segment.Address(), dl.AddressOf(&m.pinned[0]),
			int64(len(w.inputs[m.rank]))), m.stream.Synchronize(w.t.Context()))
	})
}

// twoLevelCall returns a call on the two-level path whose buffers are the rank's input and output
// regions.
func (m *testRank) twoLevelCall(op driver.Operation, t driver.DataType, count int64) driver.Call {
	return driver.Call{
		Operation: op, DataType: t, Count: count, Path: driver.PathTwoLevel, Digest: uint64(count) << 30,
		Send: m.regions[0].segment.Address(), Recv: m.regions[1].segment.Address(),
		SendWindow: m.regions[0].window, RecvWindow: m.regions[1].window,
	}
}

// twoLevelSum returns the sums of the inputs, computed like the two-level path: the inputs of
// each machine are added in rank order, these sums are rounded to the type, and then the rounded
// sums are added.
func twoLevelSum(t driver.DataType, inputs [][]byte) []byte {
	half := len(inputs) / 2
	sums := [][]byte{
		formula.Reduce(driver.RankOrder, driver.Sum, t, inputs[:half]),
		formula.Reduce(driver.RankOrder, driver.Sum, t, inputs[half:]),
	}
	return formula.Reduce(driver.RankOrder, driver.Sum, t, sums)
}

// canonicalNaNs replaces all NaNs with the same NaN, because the bits of NCCL's NaNs are
// arbitrary.
func canonicalNaNs(t driver.DataType, elements []byte) []byte {
	negativeZeros := make([]byte, len(elements))
	if t.Float() {
		for i := t.Size() - 1; i < len(elements); i += t.Size() {
			negativeZeros[i] = 0x80
		}
	}

	return formula.Reduce(driver.RankOrder, driver.Sum, t, [][]byte{elements, negativeZeros})
}

// TestTwoLevelsAgreeOnWindows makes it appear as if the ranks of one machine could not map a
// window's memory. In this case, no machine may use the window.
func TestTwoLevelsAgreeOnWindows(t *testing.T) {
	w := newTwoLevelGroup(t, 4)
	w.must(func(m *testRank) error {
		window := m.regions[1].window.(*window)
		window.machineWindow.isMappedEverywhere = m.rank < 2
		if err := window.agreeOnMachineWindow(t.Context()); err != nil {
			return err
		}

		if window.machineWindow.isMappedEverywhere || window.machineWindow.notMappedReason == "" {
			return failuref("the window is used although the other machine could not map its memory")
		}

		return nil
	})
}

// TestTwoLevelsFollowFormula compares the outputs of launched and replayed calls bit by bit with
// the expected sums (twoLevelSum) and gathered elements.
func TestTwoLevelsFollowFormula(t *testing.T) {
	w := newTwoLevelGroup(t, 4)
	for _, dataType := range []driver.DataType{
		driver.Float32, driver.BFloat16, driver.Float16, driver.Float64, driver.Int32, driver.Uint8,
	} {
		w.fill(dataType)
		size := dataType.Size()
		for _, bytes := range []int{128, 1 << 10, 96 << 10} {
			count := int64(bytes / size)
			prefix := make([][]byte, len(w.inputs))
			var gathered []byte
			for r := range prefix {
				prefix[r] = w.inputs[r][:bytes]
				gathered = append(gathered, prefix[r]...)
			}

			sum := twoLevelSum(dataType, prefix)
			w.checkCall(driver.AllReduce, dataType, count, sum)
			w.checkCall(driver.AllGather, dataType, count, gathered)
			if dataType != driver.Float64 && dataType != driver.Uint8 { // no kernel adds uneven parts
				w.checkParts(driver.ReduceScatter, dataType, count/int64(len(w.ranks)), sum)
			}
		}
	}
}

// checkParts is like checkCall for an operation that outputs one part of want on each rank.
func (w *twoLevelGroup) checkParts(
	op driver.Operation, dataType driver.DataType, count int64, want []byte,
) {
	w.t.Helper()
	w.checkOutputs(op, dataType, count, slices.Collect(slices.Chunk(want, len(want)/len(w.ranks))))
}

// checkCall launches and replays a call and checks its output, which is the same on all ranks.
func (w *twoLevelGroup) checkCall(
	op driver.Operation, dataType driver.DataType, count int64, want []byte,
) {
	w.t.Helper()
	w.checkOutputs(op, dataType, count, slices.Repeat([][]byte{want}, len(w.ranks)))
}

// checkOutputs launches and replays a call and checks the output of each rank.
func (w *twoLevelGroup) checkOutputs(
	op driver.Operation, dataType driver.DataType, count int64, outputs [][]byte,
) {
	w.t.Helper()
	ways := map[string]func(*testRank, driver.Plan) error{
		"launched": func(m *testRank, p driver.Plan) error { return m.group.Launch(m.stream, p) },
		"replayed": func(m *testRank, p driver.Plan) error {
			g, err := m.captureWork(m.stream, func() error { return m.group.Launch(m.stream, p) })
			if err != nil {
				return err
			}

			return errors.Join(g.Launch(m.stream), g.Launch(m.stream))
		},
		"recorded by another library": func(m *testRank, p driver.Plan) error {
			foreign, err := m.newForeignStreams(1)
			if err != nil {
				return err
			}

			o := foreign[0]
			err = o.capture(func() error { return m.group.(driver.Recorder).Record(o.stream, p) })
			return errors.Join(err, o.replay(), o.replay(), finish(o))
		},
	}
	for name, launch := range ways {
		w.must(func(m *testRank) error {
			want, before := outputs[m.rank], m.group.Launched()[driver.PathTwoLevel]
			output := m.regions[1].segment.Address()
			// The call may run on another stream.
			err := errors.Join(m.stream.Fill(output, 0xFF, int64(len(want))),
				m.stream.Synchronize(w.t.Context()))
			if err != nil {
				return err
			}

			p, err := prepare(m.group, m.twoLevelCall(op, dataType, count))
			if err != nil {
				return err
			}

			if err := launch(m, p); err != nil {
				return err
			}

			got, err := m.readDevice(w.testGroup, output, int64(len(want)))
			if err != nil {
				return err
			}

			if !bytes.Equal(canonicalNaNs(dataType, got), canonicalNaNs(dataType, want)) {
				return failuref("%s %v of %d %v: output differs from the formula", name, op, count, dataType)
			}

			if m.group.Launched()[driver.PathTwoLevel] == before {
				return failuref("%s %v: no call was counted on the two-level path", name, op)
			}

			return nil
		})
	}
}

// TestTwoLevelsShareNoScratch launches two ReduceScatters in turn, each on its own stream. They
// must not share scratch memory, because the work of the streams may overlap.
func TestTwoLevelsShareNoScratch(t *testing.T) {
	const half = twoLevelBytes / 16
	w := newTwoLevelGroup(t, 4)
	w.fill(driver.Int32)
	part := half / len(w.ranks)
	w.must(func(m *testRank) error {
		others, err := m.newStreams(1)
		if err != nil {
			return err
		}

		streams := []driver.Stream{m.stream, others[0]}
		var plans []driver.Plan
		for i := range streams {
			call := m.twoLevelCall(driver.ReduceScatter, driver.Int32, int64(part/4))
			call.Send, call.Recv = call.Send+uintptr(i*half), call.Recv+uintptr(i*half)
			p, err := prepare(m.group, call)
			if err != nil {
				return err
			}

			plans = append(plans, p)
		}

		for round := range 40 {
			if err := m.group.Launch(streams[round%2], plans[round%2]); err != nil {
				return err
			}
		}

		for i, s := range streams {
			if err := s.Synchronize(t.Context()); err != nil {
				return err
			}

			var inputs [][]byte
			for _, input := range w.inputs {
				inputs = append(inputs, input[i*half:][:half])
			}

			output := m.regions[1].segment.Address() + uintptr(i*half)
			got, err := m.readDevice(w.testGroup, output, int64(part))
			if err != nil {
				return err
			}

			if !bytes.Equal(got, twoLevelSum(driver.Int32, inputs)[m.rank*part:][:part]) {
				return failuref("stream %d: output differs from the formula", i)
			}
		}

		return nil
	})
}

// TestTwoLevelsRefuse checks that every rank refuses calls that the two-level path does not
// support.
func TestTwoLevelsRefuse(t *testing.T) {
	w := newTwoLevelGroup(t, 4)
	w.must(func(m *testRank) error {
		for _, call := range []driver.Call{
			m.twoLevelCall(driver.AllReduce, driver.Float32, 1021),
			m.twoLevelCall(driver.AllReduce, driver.Float32, 0),
			m.twoLevelCall(driver.AllGather, driver.Uint8, 15),
			m.twoLevelCall(driver.ReduceScatter, driver.Float32, 1021),
			m.twoLevelCall(driver.ReduceScatter, driver.Float64, 1024),
			m.twoLevelCall(driver.Broadcast, driver.Float32, 1024),
			{Operation: driver.AllReduce, DataType: driver.Float32, ReduceOp: driver.Max, Count: 1024},
		} {
			err := m.group.Offer(call).Refusal(driver.PathTwoLevel)
			if !errors.Is(err, driver.ErrUnsupported) {
				return failuref("%v of %d %v: Refusal = %v, want ErrUnsupported", call.Operation, call.Count,
					call.DataType, err)
			}
		}

		return nil
	})
}

// TestTwoLevelsRefuseLists makes a list of ReduceScatters, which need steps of their own.
func TestTwoLevelsRefuseLists(t *testing.T) {
	w := newTwoLevelGroup(t, 4)
	w.must(func(m *testRank) error {
		var plans []driver.Plan
		for range 2 {
			p, err := prepare(m.group, m.twoLevelCall(driver.ReduceScatter, driver.Int32, 1024))
			if err != nil {
				return err
			}

			plans = append(plans, p)
		}

		if _, err := m.group.(driver.Lister).List(plans); !errors.Is(err, driver.ErrUnsupported) {
			return failuref("List = %v, want ErrUnsupported", err)
		}

		return nil
	})
}

// TestTwoLevelsFailTogether makes a level fail on one rank. The group must fail on all ranks.
// Streams must report the fault only once. The text of the fault must name the group rather than
// the level.
func TestTwoLevelsFailTogether(t *testing.T) {
	for _, failed := range []func(*levels) *communicator{
		func(l *levels) *communicator { return l.machineLevel },
		func(l *levels) *communicator { return l.crossMachineLevel },
	} {
		w := newTwoLevelGroup(t, 4)
		plans := make([]driver.Plan, len(w.ranks))
		w.must(func(m *testRank) (err error) {
			plans[m.rank], err = prepare(m.group, m.twoLevelCall(driver.AllReduce, driver.Int32, 64))
			return err
		})
		w.must(func(m *testRank) (err error) {
			c := m.group.(*communicator)
			if m.rank == 3 {
				level := failed(c.levels.Load())
				_ = level.plane.Fail(level.faults.failAfterPeer(&driver.Call{}))
			}

			for err == nil {
				if err = c.Launch(m.stream, plans[m.rank]); err == nil {
					err = m.stream.Synchronize(t.Context())
				}
			}

			if errors.As(err, new(*driver.TimeoutError)) {
				return err
			}

			<-c.Failed()
			l := c.levels.Load()
			for _, level := range []*communicator{l.machineLevel, l.crossMachineLevel} {
				<-level.stages.allFreed
			}

			for _, err := range []error{err, c.Cause()} {
				if !strings.Contains(err.Error(), "of group "+c.cfg.Name()) ||
					strings.Contains(err.Error(), "machine") {
					return failuref("the fault is %q, want the name of the group and not that of a level", err)
				}
			}

			if again := m.stream.Synchronize(t.Context()); again != nil {
				return failuref("Synchronize = %v after the stream has reported %v, want nil", again, err)
			}

			return nil
		})
	}
}

// TestFaultEndsConnectingOfLevels aborts the group on rank 3 while the other ranks wait for rank 3
// in UseTwoLevels, which must return long before the timeout.
func TestFaultEndsConnectingOfLevels(t *testing.T) {
	simulateTwoMachines(t, 4)
	w := newTestGroup(t, 4, time.Minute)
	w.regroup()
	begin := time.Now()
	w.must(func(m *testRank) error {
		if m.rank == 3 {
			m.group.Abort(errors.New("planned failure"))
			return nil
		}

		err := m.group.(driver.TwoLevels).UseTwoLevels(t.Context())
		if err == nil {
			return errors.New("UseTwoLevels = nil, want an error")
		}

		return nil
	})
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("UseTwoLevels took %v, want less than half of the timeout", took)
	}
}

func TestMachineLayouts(t *testing.T) {
	for machines, want := range map[string]string{
		"aabb": "", "aabbcc": "", "aaaa": "one machine", "abcd": "one rank", "abab": "consecutive",
		"aaab": "consecutive", "aabba": "consecutive",
	} {
		var members []*member
		for _, name := range machines {
			members = append(members, &member{Machine: string(name)})
		}

		l, reason := newMachineLayout(members, 2)
		if (want == "") != (reason == "") || !strings.Contains(reason, want) {
			t.Errorf("newMachineLayout(%s) = %+v, %q; want a reason with %q", machines, l, reason, want)
		}

		if reason == "" && (l.machineIndex != 1 || l.localIndex != 0) {
			t.Errorf("newMachineLayout(%s): rank 2 has machine %d and local rank %d; want 1 and 0",
				machines, l.machineIndex, l.localIndex)
		}
	}
}
