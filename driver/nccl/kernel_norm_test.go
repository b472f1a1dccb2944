package nccl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/formula"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/control"
	"symmem/internal/dl"
)

// plainNormCase draws an out-of-place case for 2 ranks without quantization.
func plainNormCase(random *rand.Rand, rows, hidden int) *formula.NormCase {
	s := formula.NewNormCase(random, 2, rows, hidden, driver.BFloat16, driver.QuantNone)
	s.InPlace = false
	return s
}

// normBuffers holds the addresses of a rank's buffers. They are in a window if the region is
// registered.
type normBuffers struct {
	*region
	send, residual, weight, recv, quantized, scales uintptr
}

// normBufferBytes is the size of the largest buffer.
const normBufferBytes = 9 << 20

// newNormBuffers allocates buffers outside windows, at different offsets on each rank.
func newNormBuffers(m *testRank) (normBuffers, error) {
	return newNormBuffersAt(m, uintptr(16*(3*m.number+1)))
}

func newNormBuffersAt(m *testRank, offset uintptr) (d normBuffers, err error) {
	s, err := m.mapRegion(6*normBufferBytes + 4096)
	if err != nil {
		return d, err
	}

	at := s.segment.Address() + offset
	return normBuffers{
		region: s,
		send:   at, residual: at + normBufferBytes, weight: at + 2*normBufferBytes,
		recv: at + 3*normBufferBytes + 16, quantized: at + 4*normBufferBytes + 16,
		scales: at + 5*normBufferBytes + 20,
	}, nil
}

// write copies host memory to the device.
func (m *testRank) write(at uintptr, values []byte) error {
	if len(values) == 0 {
		return nil
	}

	copy(m.pinned, values)
	return errors.Join(m.stream.Copy(at, dl.AddressOf(&m.pinned[0]), int64(len(values))),
		m.stream.Synchronize(context.Background()))
}

// prepare copies the inputs of a case to a rank, and returns the call.
func (d *normBuffers) prepare(m *testRank, s *formula.NormCase) (driver.Call, error) {
	norm := s.Norm
	norm.Residual, norm.Weight = d.residual, d.weight
	if s.Quant != driver.QuantNone {
		norm.Quantized, norm.Scales = d.quantized, d.scales
	}

	call := driver.Call{
		Operation: s.Operation, DataType: s.DataType, Digest: 77,
		Count: s.Rows * s.Hidden, Send: d.send, Recv: d.recv, Path: driver.PathDirect, Norm: &norm,
		SendWindow: d.window, RecvWindow: d.window,
	}
	if s.InPlace {
		call.Recv = d.send + uintptr(2*int(call.Count)*s.Rank)
	}

	if s.Operation == driver.ReduceScatterRMSNorm {
		call.RecvWindow = nil // the operation does not use it
	}

	scales := make([]float32, len(s.Want.Scales)+2)
	for i := range scales {
		scales[i] = formula.UnwrittenScale
	}

	if s.Quant == driver.QuantStatic {
		scales[1] = s.Scale
	}

	return call, errors.Join(
		m.stream.Fill(call.Recv-8, 0xff, 2*call.Count+16),
		m.stream.Fill(d.quantized-8, 0xff, call.Count+16),
		m.write(d.scales-4, formula.Bytes(scales)),
		m.write(d.send, formula.Bytes(s.Inputs[m.rank])),
		m.write(d.residual, formula.Bytes(s.ResidualBefore)),
		m.write(d.weight, formula.Bytes(s.Weights)))
}

// check compares the outputs of a call with the expected values.
func (d *normBuffers) check(
	w *testGroup, m *testRank, s *formula.NormCase, call *driver.Call,
) error {
	var errs []error
	compare := func(name string, address uintptr, want, guard []byte) {
		n := int64(len(guard))
		got, err := m.readDevice(w, address-uintptr(n), int64(len(want))+2*n)
		errs = append(errs, err)
		if name == "scales" && err == nil {
			formula.SetCanonicalNaNs(got)
		}

		if want = slices.Concat(guard, want, guard); err == nil && !bytes.Equal(got, want) {
			i := 0
			for got[i] == want[i] {
				i++
			}

			errs = append(errs, fmt.Errorf("%v: byte %d of the %s is %#x, want %#x", s, int64(i)-n, name,
				got[i], want[i]))
		}
	}
	compare("residual", d.residual, formula.Bytes(s.Want.Residual), nil)
	guard := poison
	if s.InPlace && s.Operation == driver.ReduceScatterRMSNorm {
		guard = nil // the inputs for other ranks are there
	}

	if !s.OnlyQuantized {
		compare("output", call.Recv, formula.Bytes(s.Want.Output), guard)
	}

	if s.Quant != driver.QuantNone {
		compare("quantized output", d.quantized, s.Want.Quantized, poison)
		compare("scales", d.scales, formula.Bytes(s.Want.Scales),
			formula.Bytes([]float32{formula.UnwrittenScale}))
	}

	return errors.Join(errs...)
}

var poison = bytes.Repeat([]byte{0xff}, 8)

// TestNormsAreCorrect compares the outputs of norms, bit by bit, with outputs computed on the
// host.
func TestNormsAreCorrect(t *testing.T) {
	random := newRandom(t)
	trials := 6
	if runsAllCases() {
		trials = 400
	}

	w, buffers := newNormGroup(t, ranksUpTo(t, 4), time.Minute)
	for _, members := range memberLists(t) {
		w.regroup(members...)
		for i := range trials {
			s := formula.RandomNormCase(random, len(members), 128)
			if i%3 == 0 {
				s.AddSpecialValues(random)
			}

			w.normalize(buffers, s)
			s.Rows = min(s.Rows, 128/int64(len(members)))
			w.normalize(buffers, s.Scatter(random)...)
		}
	}
}

// TestNormsOfManyRows is TestNormsAreCorrect for more rows than a GPU has multiprocessors. Blocks
// then have several rows.
func TestNormsOfManyRows(t *testing.T) {
	random := newRandom(t)
	w, buffers := newNormGroup(t, 2, time.Minute)
	w.regroup(0, 1)
	for i, hidden := range []int{4096, 7168, 8192, 128 * (1 + random.IntN(64)), 2056} {
		dataType, quant := driver.BFloat16, driver.Quant(i%4)
		if i == 1 {
			dataType = driver.Float16
		}

		s := formula.NewNormCase(random, 2, 140+random.IntN(160), hidden, dataType, quant)
		s.AddSpecialValues(random)
		w.normalize(buffers, s)
		s.Rows = min(s.Rows, 200)
		w.normalize(buffers, s.Scatter(random)...)
	}
}

// normalize runs a norm and checks its outputs. There is one case for all ranks, or one for each.
func (w *testGroup) normalize(buffers []normBuffers, cases ...*formula.NormCase) {
	w.t.Helper()
	w.must(func(m *testRank) error {
		d, s := &buffers[m.number], cases[m.rank%len(cases)]
		call, err := d.prepare(m, s)
		if err == nil {
			err = m.launch(m.stream, call)
		}

		if err != nil {
			return err
		}

		return d.check(w, m, s, &call)
	})
}

// newNormGroup opens a test group with norm buffers on each rank.
func newNormGroup(t *testing.T, ranks int, timeout time.Duration) (*testGroup, []normBuffers) {
	t.Helper()
	w := newTestGroup(t, ranks, timeout)
	buffers := make([]normBuffers, len(w.opened))
	w.must(func(m *testRank) (err error) {
		buffers[m.number], err = newNormBuffers(m)
		return err
	})
	return w, buffers
}

func TestNormsAreCaptured(t *testing.T) {
	const replays = 5
	random := newRandom(t)
	w, buffers := newNormGroup(t, 2, time.Minute)
	w.regroup(0, 1)
	cases := []*formula.NormCase{plainNormCase(random, 3, 1024), plainNormCase(random, 300, 512)}
	for _, s := range cases {
		w.must(func(m *testRank) error {
			d := &buffers[m.number]
			call, err := d.prepare(m, s)
			if err != nil {
				return err
			}

			g, err := m.captureWork(m.stream, func() error { return m.launch(m.stream, call) })
			if err != nil {
				return err
			}

			for range replays {
				// Prepare the inputs again, because a call overwrites its residual.
				if _, err := d.prepare(m, s); err != nil {
					return err
				}

				if err := g.Launch(m.stream); err != nil {
					return err
				}

				if err := d.check(w, m, s, &call); err != nil {
					return err
				}
			}

			return nil
		})
	}
}

// TestNormsThatDifferFail launches the same norm on two ranks, and then norms with different
// shapes and digests. If a rank launches the second norm, that norm must poison its outputs. If a
// rank notices the fault before its launch, it may refuse the call, but the buffers must then be
// unchanged.
func TestNormsThatDifferFail(t *testing.T) {
	random := newRandom(t)
	w, buffers := newNormGroup(t, 2, time.Minute)
	for _, pair := range [][2]*formula.NormCase{
		{plainNormCase(random, 2, 1024), plainNormCase(random, 1, 2048)},
		{plainNormCase(random, 100, 2048), plainNormCase(random, 200, 1024)},
		{plainNormCase(random, 0, 1024), plainNormCase(random, 1, 1024)},
	} {
		w.regroup(0, 1)
		w.launchMismatchedNorms(buffers, pair)
	}
}

// TestNormIsRefusedAfterAFault delays rank 0 after the announcement of its call and before the
// launch, until rank 1 has detected the mismatch and failed.
func TestNormIsRefusedAfterAFault(t *testing.T) {
	if !isOneMachine() {
		t.Skip("not supported here: ranks of several machines do not announce their calls")
	}

	random := newRandom(t)
	w, buffers := newNormGroup(t, 2, time.Minute)
	w.regroup(0, 1)
	c := w.ranks[0].group.(*communicator)
	c.direct.announcements = delayedAnnouncements{c.direct.announcements, c.plane}
	pair := [2]*formula.NormCase{plainNormCase(random, 2, 1024), plainNormCase(random, 1, 2048)}
	launched := w.launchMismatchedNorms(buffers, pair)
	if launched[0] || !launched[1] {
		t.Errorf("got launched = %v, want only rank 1 to launch", launched)
	}
}

// delayedAnnouncements announces calls. After it has announced the second call, it waits until a
// peer has failed.
type delayedAnnouncements struct {
	control.Announcements
	plane control.Plane
}

func (d delayedAnnouncements) Announce(ticket, digest uint64) {
	d.Announcements.Announce(ticket, digest)
	if ticket == 2 {
		_ = gpu.PollQueryFor(20*time.Second, func() (bool, error) { return d.plane.PeerFailed(), nil })
	}
}

// launchMismatchedNorms launches the same norm on both ranks, and then a different norm on each
// rank. It reports which ranks launched the second norm.
func (w *testGroup) launchMismatchedNorms(
	buffers []normBuffers, pair [2]*formula.NormCase,
) (launched [2]bool) {
	w.t.Helper()
	for r, err := range w.each(func(m *testRank) error {
		call, err := buffers[m.number].prepare(m, pair[0])
		if err == nil {
			err = m.launch(m.stream, call)
		}

		if err != nil {
			return err
		}

		s := pair[m.rank]
		if call, err = buffers[m.number].prepare(m, s); err != nil {
			return err
		}

		call.Digest = uint64(s.Rows)
		if err := m.launch(m.stream, call); err != nil {
			return err
		}

		launched[m.rank] = true
		return m.stream.Synchronize(w.t.Context())
	}) {
		var mismatch *driver.MismatchError
		if !errors.As(err, &mismatch) || mismatch.Call.Norm.Rows != pair[r].Rows ||
			mismatch.Number != 2 {
			w.t.Errorf("%v: rank %d: got %v, want a MismatchError about the second call", pair[r],
				r, err)
		}
	}

	w.must(func(m *testRank) error {
		d, s := &buffers[m.number], pair[m.rank]
		// prepare has set all bits of the output.
		out, err := m.readDevice(w, d.recv, int64(2*len(s.ResidualBefore)))
		if err == nil && !isPoison(out) {
			err = fmt.Errorf("%v: not all of the output is poison", s)
		}

		if launched[m.rank] {
			return errors.Join(err, d.checkPoisoned(w, m, s))
		}

		return errors.Join(err, d.checkUnchanged(w, m, s))
	})
	return launched
}

// checkUnchanged checks that a refused call has not changed the residual.
func (d *normBuffers) checkUnchanged(w *testGroup, m *testRank, s *formula.NormCase) error {
	got, err := m.readDevice(w, d.residual, int64(2*len(s.ResidualBefore)))
	if err == nil && !bytes.Equal(got, formula.Bytes(s.ResidualBefore)) {
		err = fmt.Errorf("%v: the call was refused, but the residual has changed", s)
	}

	return err
}

// checkPoisoned checks that a failed call has poisoned all outputs except Recv.
func (d *normBuffers) checkPoisoned(w *testGroup, m *testRank, s *formula.NormCase) error {
	outputs := map[uintptr]int64{d.residual: 2 * s.Rows * s.Hidden}
	if s.Quant != driver.QuantNone {
		outputs[d.quantized] = s.Rows * s.Hidden
	}

	if s.Quant.ComputesScales() {
		outputs[d.scales] = 4
	}

	var errs []error
	for at, bytes := range outputs {
		got, err := m.readDevice(w, at, bytes)
		if err == nil && !isPoison(got) {
			err = fmt.Errorf("%v: %d bytes of an output are not poison", s, bytes)
		}

		errs = append(errs, err)
	}

	return errors.Join(errs...)
}

// isPoison reports whether all bits are set.
func isPoison(b []byte) bool { return bytes.Count(b, []byte{0xff}) == len(b) }

func TestNormTimesOut(t *testing.T) {
	random := newRandom(t)
	w, buffers := newNormGroup(t, 2, time.Second)
	for _, s := range []*formula.NormCase{
		plainNormCase(random, 1, 1024), plainNormCase(random, 200, 1024),
		formula.NewNormCase(random, 2, 3, 1024, driver.Float16, driver.QuantPerRow),
		formula.NewNormCase(random, 2, 3, 1024, driver.BFloat16, driver.QuantPerGroup),
	} {
		w.regroup(0, 1)
		errs := w.each(func(m *testRank) error {
			if m.rank == 1 {
				return nil
			}

			call, err := buffers[0].prepare(m, s)
			if err == nil {
				err = m.launch(m.stream, call)
			}

			return errors.Join(err, m.stream.Synchronize(t.Context()))
		})
		var timeoutErr *driver.TimeoutError
		if !errors.As(errs[0], &timeoutErr) || !slices.Equal(timeoutErr.Missing, []int{1}) {
			t.Errorf("%v: rank 0: got %v, want a TimeoutError about rank 1", s, errs[0])
		}

		w.must(func(m *testRank) error {
			if m.rank == 1 {
				return nil
			}

			return buffers[0].checkPoisoned(w, m, s)
		})
	}
}
