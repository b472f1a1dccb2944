package nccl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/control"
	"symmem/internal/dl"
	"symmem/internal/reduce"
)

// A thread adds the squares of up to 4 packs of 8 elements. A warp adds its threads' sums in 5
// steps. A block adds the sums of up to 16 warps. normSteps is the largest number of roundings of
// an element's contribution, including the rounding of the square.
//
// All terms are positive, so the relative error of their sum is at most normSteps units of float32
// (u, 2^-24). The mean and the addition of epsilon round once each. The root halves the relative
// error and adds 2 units in the last place (4u). The two products round once each. So normError
// bounds the relative error of an element before its last rounding, to first order in u.
const (
	normSteps = 4*8 + 5 + 16 + 1
	normError = ((normSteps+2)/2.0 + 4 + 2) * 0x1p-24
)

// normCase is the inputs of a norm on all ranks, and the expected sums.
type normCase struct {
	rows, hidden     int
	epsilon          float32
	inPlace          bool
	inputs           [][]float32 // of each rank
	residual, weight []float32
	sums             []float32 // expected residual
}

// newNormCase draws a case with the given shape.
func newNormCase(random *rand.Rand, ranks, rows, hidden int) *normCase {
	s := &normCase{
		rows: rows, hidden: hidden, epsilon: float32(random.Float64() * 1e-5),
		inPlace: random.IntN(2) == 0,
	}
	for range ranks {
		s.inputs = append(s.inputs, randomValues(random, rows*hidden))
	}
	s.residual, s.weight = randomValues(random, rows*hidden), randomValues(random, hidden)
	s.sums = make([]float32, rows*hidden)
	for i := range s.sums {
		sum := s.inputs[0][i]
		for _, in := range s.inputs[1:] {
			sum += in[i]
		}
		s.sums[i] = roundBFloat16(roundBFloat16(sum) + s.residual[i])
	}
	return s
}

// randomNormCase draws a case with a random shape.
func randomNormCase(random *rand.Rand, ranks int) *normCase {
	hidden := driver.NormUnit * (1 + random.IntN(600))
	switch random.IntN(4) {
	case 0:
		hidden = driver.MaxHidden >> random.IntN(5)
	case 1:
		hidden = driver.NormUnit * (1 + random.IntN(driver.MaxHidden/driver.NormUnit))
	}
	return newNormCase(random, ranks, random.IntN(1<<random.IntN(8)+1), hidden)
}

func (s *normCase) String() string {
	return fmt.Sprintf("%d rows of %d on %d ranks, in place: %v", s.rows, s.hidden, len(s.inputs),
		s.inPlace)
}

func roundBFloat16(v float32) float32 { return reduce.BFloat16Value(reduce.BFloat16Bits(v)) }

func randomValues(random *rand.Rand, n int) []float32 {
	values := make([]float32, n)
	for i := range values {
		values[i] = roundBFloat16(float32(random.NormFloat64()))
	}
	return values
}

func packBFloat16(values []float32) []byte {
	out := make([]byte, 2*len(values))
	for i, v := range values {
		put(driver.BFloat16, out, i, v)
	}
	return out
}

// check compares an output with norms that are computed in float64.
func (s *normCase) check(got []byte) error {
	for row := range s.rows {
		sums := s.sums[row*s.hidden:][:s.hidden]
		squares := 0.0
		for _, v := range sums {
			squares += float64(v) * float64(v)
		}
		scale := 1 / math.Sqrt(squares/float64(s.hidden)+float64(s.epsilon))
		for i, v := range sums {
			exact := float64(v) * scale * float64(s.weight[i])
			a, b := roundBFloat16(float32(exact*(1-normError))), roundBFloat16(float32(exact*(1+normError)))
			element := value(driver.BFloat16, got, row*s.hidden+i)
			if element != a && element != b {
				return fmt.Errorf("%v: row %d, element %d is %g, want %g to %g", s, row, i, element, a, b)
			}
		}
	}
	return nil
}

// normBuffers is the addresses of a rank's buffers. The buffers are outside windows, at different
// offsets on each rank.
type normBuffers struct {
	send, residual, weight, recv uintptr
}

// normBufferBytes is the size of the largest buffer.
const normBufferBytes = 6 << 20

func newNormBuffers(m *testRank) (d normBuffers, err error) {
	s, err := m.mapRegion(4*normBufferBytes + 4096)
	if err != nil {
		return d, err
	}
	at := s.segment.Address() + uintptr(16*(3*m.number+1))
	return normBuffers{
		send: at, residual: at + normBufferBytes, weight: at + 2*normBufferBytes,
		recv: at + 3*normBufferBytes + 16,
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
func (d *normBuffers) prepare(m *testRank, s *normCase) (driver.Call, error) {
	call := driver.Call{
		Operation: driver.AllReduceRMSNorm, DataType: driver.BFloat16, Digest: 77,
		Count: int64(s.rows * s.hidden), Send: d.send, Recv: d.recv, Path: driver.PathDirect,
		Norm: &driver.Norm{
			Rows: int64(s.rows), Hidden: int64(s.hidden), Epsilon: s.epsilon, Residual: d.residual,
			Weight: d.weight,
		},
	}
	if s.inPlace {
		call.Recv = d.send
	}
	return call, errors.Join(
		m.stream.Fill(call.Recv-8, 0xff, 2*call.Count+16),
		m.write(d.send, packBFloat16(s.inputs[m.rank])), m.write(d.residual, packBFloat16(s.residual)),
		m.write(d.weight, packBFloat16(s.weight)))
}

// check compares the output of a call with the expected values.
func (d *normBuffers) check(
	w *testGroup, m *testRank, s *normCase, call *driver.Call,
) ([]byte, error) {
	sums, err := m.readDevice(w, d.residual, 2*call.Count)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(sums, packBFloat16(s.sums)) {
		return nil, fmt.Errorf("%v: the residual is wrong", s)
	}
	around, err := m.readDevice(w, call.Recv-8, 2*call.Count+16)
	if err != nil {
		return nil, err
	}
	if n := len(around); !bytes.Equal(around[:8], poison) || !bytes.Equal(around[n-8:], poison) {
		return nil, fmt.Errorf("%v: memory next to the output was written", s)
	}
	out := bytes.Clone(around[8 : len(around)-8])
	return out, s.check(out)
}

var poison = bytes.Repeat([]byte{0xff}, 8)

// TestNormsAreCorrect checks that residuals equal float32 results, bit by bit. Outputs must be
// within the error bound of float64 results, and equal on all ranks.
func TestNormsAreCorrect(t *testing.T) {
	random := newRandom(t)
	trials := 12
	if full() {
		trials = 400
	}
	w, buffers := newNormGroup(t, atMost(t, 4), time.Minute)
	for _, members := range memberLists(t) {
		w.regroup(members...)
		for range trials {
			w.normalize(buffers, randomNormCase(random, len(members)))
		}
	}
}

// normalize runs a norm and checks its output.
func (w *testGroup) normalize(buffers []normBuffers, s *normCase) {
	w.t.Helper()
	outs := make([][]byte, len(w.ranks))
	w.must(func(m *testRank) error {
		d := &buffers[m.number]
		call, err := d.prepare(m, s)
		if err == nil {
			err = m.launch(m.stream, call)
		}
		if err == nil {
			outs[m.rank], err = d.check(w, m, s, &call)
		}
		return err
	})
	for r, out := range outs {
		if !bytes.Equal(out, outs[0]) {
			w.t.Fatalf("%v: the outputs of ranks 0 and %d differ", s, r)
		}
	}
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
	cases := []*normCase{newNormCase(random, 2, 3, 1024), newNormCase(random, 2, 300, 512)}
	for _, s := range cases {
		s.inPlace = false
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
				// A call overwrites its residual.
				if _, err := d.prepare(m, s); err != nil {
					return err
				}
				if err := g.Launch(m.stream); err != nil {
					return err
				}
				if _, err := d.check(w, m, s, &call); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// TestNormsThatDifferFail launches norms with different shapes and digests on two ranks. Before
// that, both ranks launch the same norm. A launched call must have poisoned its buffers. A rank may
// notice the fault before its launch and refuse the call. Its buffers must then be unchanged.
func TestNormsThatDifferFail(t *testing.T) {
	random := newRandom(t)
	w, buffers := newNormGroup(t, 2, time.Minute)
	for _, pair := range [][2]*normCase{
		{newNormCase(random, 2, 2, 1024), newNormCase(random, 2, 1, 2048)},
		{newNormCase(random, 2, 100, 2048), newNormCase(random, 2, 200, 1024)},
		{newNormCase(random, 2, 0, 1024), newNormCase(random, 2, 1, 1024)},
	} {
		w.regroup(0, 1)
		w.launchMismatchedNorms(buffers, pair)
	}
}

// TestNormIsRefusedAfterAFault delays rank 0 between the announcement and the launch of its call.
// Meanwhile the other rank detects the mismatch and fails.
func TestNormIsRefusedAfterAFault(t *testing.T) {
	if !onOneMachine() {
		t.Skip("not supported here: ranks of several machines do not announce their calls")
	}
	random := newRandom(t)
	w, buffers := newNormGroup(t, 2, time.Minute)
	w.regroup(0, 1)
	c := w.ranks[0].group.(*communicator)
	c.direct.announcements = delayedAnnouncements{c.direct.announcements, c.plane}
	pair := [2]*normCase{newNormCase(random, 2, 2, 1024), newNormCase(random, 2, 1, 2048)}
	launched := w.launchMismatchedNorms(buffers, pair)
	if launched[0] || !launched[1] {
		t.Errorf("got launched = %v, want only rank 1 to launch", launched)
	}
}

// delayedAnnouncements blocks after the announcement of the second call until a peer has failed.
type delayedAnnouncements struct {
	control.Announcements
	plane control.Plane
}

func (d delayedAnnouncements) Announce(ticket, digest uint64) {
	d.Announcements.Announce(ticket, digest)
	if ticket == 2 {
		_ = gpu.Within(20*time.Second, func() (bool, error) { return d.plane.PeerFailed(), nil })
	}
}

// launchMismatchedNorms launches the same norm on both ranks, and then a different norm on each
// rank. It reports which ranks launched the second norm.
func (w *testGroup) launchMismatchedNorms(
	buffers []normBuffers, pair [2]*normCase,
) (launched [2]bool) {
	w.t.Helper()
	pair[0].inPlace, pair[1].inPlace = false, false
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
		call.Digest = uint64(s.rows)
		if err := m.launch(m.stream, call); err != nil {
			return err
		}
		launched[m.rank] = true
		return m.stream.Synchronize(w.t.Context())
	}) {
		var mismatch *driver.MismatchError
		if !errors.As(err, &mismatch) || mismatch.Call.Norm.Rows != int64(pair[r].rows) ||
			mismatch.Number != 2 {
			w.t.Errorf("%v: rank %d got %v, want a MismatchError about the second call", pair[r], r, err)
		}
	}
	w.must(func(m *testRank) error {
		d, s := &buffers[m.number], pair[m.rank]
		out, err := m.readDevice(w, d.recv, int64(2*len(s.residual))) // prepare has set all bits of it
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
func (d *normBuffers) checkUnchanged(w *testGroup, m *testRank, s *normCase) error {
	got, err := m.readDevice(w, d.residual, int64(2*len(s.residual)))
	if err == nil && !bytes.Equal(got, packBFloat16(s.residual)) {
		err = fmt.Errorf("%v: the call was refused, but the residual has changed", s)
	}
	return err
}

// checkPoisoned checks that a failed call has poisoned the whole residual.
func (d *normBuffers) checkPoisoned(w *testGroup, m *testRank, s *normCase) error {
	got, err := m.readDevice(w, d.residual, int64(2*len(s.residual)))
	if err == nil && !isPoison(got) {
		err = fmt.Errorf("%v: the residual is not poison", s)
	}
	return err
}

// isPoison reports whether all bits are set.
func isPoison(b []byte) bool { return bytes.Count(b, []byte{0xff}) == len(b) }

func TestNormTimesOut(t *testing.T) {
	random := newRandom(t)
	w, buffers := newNormGroup(t, 2, time.Second)
	for _, s := range []*normCase{newNormCase(random, 2, 1, 1024), newNormCase(random, 2, 200, 1024)} {
		w.regroup(0, 1)
		s.inPlace = false
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
			t.Errorf("%v: got %v, want a TimeoutError about rank 1", s, errs[0])
		}
		w.must(func(m *testRank) error {
			if m.rank == 1 {
				return nil
			}
			return buffers[0].checkPoisoned(w, m, s)
		})
	}
}
