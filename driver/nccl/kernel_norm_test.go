package nccl

import (
	"bytes"
	"context"
	"encoding/binary"
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
	"symmem/internal/reduce"
)

// normCase holds the inputs of a norm on all ranks, and the expected outputs. Elements are stored
// as raw bits.
type normCase struct {
	driver.Norm
	dataType         driver.DataType
	inPlace          bool
	inputs           [][]uint16 // by rank
	residual, weight []uint16
	scale            float32 // for QuantStatic
	// want holds the expected outputs, one row after the other. Its scales are laid out with
	// ScaleStrides.
	want formula.NormRow
}

// newNormCase draws a case with the given shape.
func newNormCase(random *rand.Rand, ranks, rows, hidden int) *normCase {
	dataType, quant := driver.BFloat16, driver.Quant(random.IntN(4))
	if random.IntN(3) == 0 {
		dataType = driver.Float16
	}
	if quant == driver.QuantPerGroup && hidden%driver.QuantGroup != 0 {
		quant = driver.QuantPerRow
	}
	return drawNormCase(random, ranks, rows, hidden, dataType, quant)
}

// drawNormCase draws a case with the given shape, type and quantization.
func drawNormCase(
	random *rand.Rand, ranks, rows, hidden int, dataType driver.DataType, quant driver.Quant,
) *normCase {
	s := &normCase{
		Norm: driver.Norm{
			Rows: int64(rows), Hidden: int64(hidden), Epsilon: float32(random.Float64() * 1e-5),
			WeightBias: float32(random.IntN(2)), Quant: quant,
			OnlyQuantized: quant != driver.QuantNone && random.IntN(2) == 0,
		},
		dataType: dataType, scale: float32(random.Float64()),
	}
	s.inPlace = s.OnlyQuantized || random.IntN(2) == 0
	s.drawStrides(random)
	for range ranks {
		s.inputs = append(s.inputs, s.draw(random, rows*hidden))
	}
	s.residual, s.weight = s.draw(random, rows*hidden), s.draw(random, hidden)
	s.expect()
	return s
}

// plainNormCase draws a case for 2 ranks without quantization, not in place.
func plainNormCase(random *rand.Rand, rows, hidden int) *normCase {
	s := drawNormCase(random, 2, rows, hidden, driver.BFloat16, driver.QuantNone)
	s.inPlace = false
	return s
}

// drawStrides stores scales row by row or, for groups, also column by column with gaps.
func (s *normCase) drawStrides(random *rand.Rand) {
	if s.Quant.Computes() {
		s.ScaleStrides = s.DefaultScaleStrides()
	}
	if s.Quant == driver.QuantPerGroup && random.IntN(2) == 0 {
		s.ScaleStrides = [2]int64{1, (s.Rows + 3) / 4 * 4}
	}
}

// expect computes the expected outputs.
func (s *normCase) expect() {
	for row := range int(s.Rows) {
		begin, end := row*int(s.Hidden), (row+1)*int(s.Hidden)
		sums := make([]uint16, s.Hidden)
		for i := range sums {
			sum := s.value(s.inputs[0][begin+i])
			for _, in := range s.inputs[1:] {
				sum += s.value(in[begin+i])
			}
			sums[i] = s.bits(sum)
		}
		r := formula.Norm(&s.Norm, s.dataType, sums, s.residual[begin:end], s.weight, s.scale)
		s.want.Residual = append(s.want.Residual, r.Residual...)
		s.want.Output = append(s.want.Output, r.Output...)
		s.want.Quantized = append(s.want.Quantized, r.Quantized...)
		for g, scale := range r.Scales {
			at := row*int(s.ScaleStrides[0]) + g*int(s.ScaleStrides[1])
			for len(s.want.Scales) <= at {
				s.want.Scales = append(s.want.Scales, unwritten)
			}
			s.want.Scales[at] = scale
		}
	}
	if s.Quant == driver.QuantStatic {
		s.want.Scales = []float32{s.scale}
	}
}

// unwritten is the initial value of all scales.
const unwritten = -1

// randomNormCase draws a case with a random shape.
func randomNormCase(random *rand.Rand, ranks int) *normCase {
	hidden := driver.NormUnit * (1 + random.IntN(600))
	switch random.IntN(4) {
	case 0:
		hidden = driver.MaxHidden >> random.IntN(5)
	case 1:
		hidden = driver.NormUnit * (1 + random.IntN(driver.MaxHidden/driver.NormUnit))
	case 2:
		hidden = driver.QuantGroup * (1 + random.IntN(64))
	}
	return newNormCase(random, ranks, random.IntN(1<<random.IntN(8)+1), hidden)
}

func (s *normCase) String() string {
	return fmt.Sprintf("%d rows of %d %v on %d ranks, in place: %v, %s", s.Rows, s.Hidden, s.dataType,
		len(s.inputs), s.inPlace, s.Describe())
}

func (s *normCase) bits(v float32) uint16 {
	if s.dataType == driver.Float16 {
		return reduce.Float16Bits(v)
	}
	return reduce.BFloat16Bits(v)
}

func (s *normCase) value(bits uint16) float32 {
	if s.dataType == driver.Float16 {
		return reduce.Float16Value(bits)
	}
	return reduce.BFloat16Value(bits)
}

func (s *normCase) draw(random *rand.Rand, n int) []uint16 {
	values := make([]uint16, n)
	for i := range values {
		values[i] = s.bits(float32(random.NormFloat64()))
	}
	return values
}

// encode returns values in the byte order of the device.
func encode[T any](values []T) []byte {
	out, err := binary.Append(nil, binary.LittleEndian, values)
	if err != nil {
		panic(err)
	}
	return out
}

// normBuffers holds the addresses of a rank's buffers. The buffers are outside windows, at
// different offsets on each rank.
type normBuffers struct {
	send, residual, weight, recv, quantized, scales uintptr
}

// normBufferBytes is the size of the largest buffer.
const normBufferBytes = 6 << 20

func newNormBuffers(m *testRank) (d normBuffers, err error) {
	s, err := m.mapRegion(6*normBufferBytes + 4096)
	if err != nil {
		return d, err
	}
	at := s.segment.Address() + uintptr(16*(3*m.number+1))
	return normBuffers{
		send: at, residual: at + normBufferBytes, weight: at + 2*normBufferBytes,
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
func (d *normBuffers) prepare(m *testRank, s *normCase) (driver.Call, error) {
	norm := s.Norm
	norm.Residual, norm.Weight = d.residual, d.weight
	if s.Quant != driver.QuantNone {
		norm.Quantized, norm.Scales = d.quantized, d.scales
	}
	call := driver.Call{
		Operation: driver.AllReduceRMSNorm, DataType: s.dataType, Digest: 77,
		Count: s.Rows * s.Hidden, Send: d.send, Recv: d.recv, Path: driver.PathDirect, Norm: &norm,
	}
	if s.inPlace {
		call.Recv = d.send
	}
	scales := make([]float32, len(s.want.Scales)+2)
	for i := range scales {
		scales[i] = unwritten
	}
	if s.Quant == driver.QuantStatic {
		scales[1] = s.scale
	}
	return call, errors.Join(
		m.stream.Fill(call.Recv-8, 0xff, 2*call.Count+16),
		m.stream.Fill(d.quantized-8, 0xff, call.Count+16),
		m.write(d.scales-4, encode(scales)),
		m.write(d.send, encode(s.inputs[m.rank])), m.write(d.residual, encode(s.residual)),
		m.write(d.weight, encode(s.weight)))
}

// check compares the outputs of a call with the expected values.
func (d *normBuffers) check(w *testGroup, m *testRank, s *normCase, call *driver.Call) error {
	var errs []error
	compare := func(name string, address uintptr, want, guard []byte) {
		n := int64(len(guard))
		got, err := m.readDevice(w, address-uintptr(n), int64(len(want))+2*n)
		errs = append(errs, err)
		if want = slices.Concat(guard, want, guard); err == nil && !bytes.Equal(got, want) {
			i := 0
			for got[i] == want[i] {
				i++
			}
			errs = append(errs, fmt.Errorf("%v: byte %d of the %s is %#x, want %#x", s, int64(i)-n, name,
				got[i], want[i]))
		}
	}
	compare("residual", d.residual, encode(s.want.Residual), nil)
	if !s.OnlyQuantized {
		compare("output", call.Recv, encode(s.want.Output), poison)
	}
	if s.Quant != driver.QuantNone {
		compare("quantized output", d.quantized, s.want.Quantized, poison)
		compare("scales", d.scales, encode(s.want.Scales), encode([]float32{unwritten}))
	}
	return errors.Join(errs...)
}

var poison = bytes.Repeat([]byte{0xff}, 8)

// TestNormsAreCorrect compares the outputs with the formula, bit by bit.
func TestNormsAreCorrect(t *testing.T) {
	random := newRandom(t)
	trials := 12
	if full() {
		trials = 400
	}
	w, buffers := newNormGroup(t, ranksUpTo(t, 4), time.Minute)
	for _, members := range memberLists(t) {
		w.regroup(members...)
		for range trials {
			w.normalize(buffers, randomNormCase(random, len(members)))
		}
	}
}

// normalize runs a norm and checks its outputs.
func (w *testGroup) normalize(buffers []normBuffers, s *normCase) {
	w.t.Helper()
	w.must(func(m *testRank) error {
		d := &buffers[m.number]
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
	cases := []*normCase{plainNormCase(random, 3, 1024), plainNormCase(random, 300, 512)}
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

// TestNormsThatDifferFail launches the same norm on two ranks, and then norms with different shapes
// and digests. On a rank that launched it, the second norm must have poisoned its buffers. A rank
// that notices the fault before its launch may refuse the call, but its buffers must then be
// unchanged.
func TestNormsThatDifferFail(t *testing.T) {
	random := newRandom(t)
	w, buffers := newNormGroup(t, 2, time.Minute)
	for _, pair := range [][2]*normCase{
		{plainNormCase(random, 2, 1024), plainNormCase(random, 1, 2048)},
		{plainNormCase(random, 100, 2048), plainNormCase(random, 200, 1024)},
		{plainNormCase(random, 0, 1024), plainNormCase(random, 1, 1024)},
	} {
		w.regroup(0, 1)
		w.launchMismatchedNorms(buffers, pair)
	}
}

// TestNormIsRefusedAfterAFault delays rank 0 between the announcement and the launch of its call,
// until the other rank has detected the mismatch and failed.
func TestNormIsRefusedAfterAFault(t *testing.T) {
	if !onOneMachine() {
		t.Skip("not supported here: ranks of several machines do not announce their calls")
	}
	random := newRandom(t)
	w, buffers := newNormGroup(t, 2, time.Minute)
	w.regroup(0, 1)
	c := w.ranks[0].group.(*communicator)
	c.direct.announcements = delayedAnnouncements{c.direct.announcements, c.plane}
	pair := [2]*normCase{plainNormCase(random, 2, 1024), plainNormCase(random, 1, 2048)}
	launched := w.launchMismatchedNorms(buffers, pair)
	if launched[0] || !launched[1] {
		t.Errorf("got launched = %v, want only rank 1 to launch", launched)
	}
}

// delayedAnnouncements waits until a peer has failed after it has announced the second call.
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
			w.t.Errorf("%v: error on rank %d is %v, want a MismatchError about the second call", pair[r],
				r, err)
		}
	}
	w.must(func(m *testRank) error {
		d, s := &buffers[m.number], pair[m.rank]
		out, err := m.readDevice(w, d.recv, int64(2*len(s.residual))) // prepare has set all of its bits
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
	if err == nil && !bytes.Equal(got, encode(s.residual)) {
		err = fmt.Errorf("%v: the call was refused, but the residual has changed", s)
	}
	return err
}

// checkPoisoned checks that a failed call has poisoned its outputs other than Recv.
func (d *normBuffers) checkPoisoned(w *testGroup, m *testRank, s *normCase) error {
	outputs := map[uintptr]int64{d.residual: 2 * s.Rows * s.Hidden}
	if s.Quant != driver.QuantNone {
		outputs[d.quantized] = s.Rows * s.Hidden
	}
	if s.Quant.Computes() {
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
	for _, s := range []*normCase{
		plainNormCase(random, 1, 1024), plainNormCase(random, 200, 1024),
		drawNormCase(random, 2, 3, 1024, driver.Float16, driver.QuantPerRow),
		drawNormCase(random, 2, 3, 1024, driver.BFloat16, driver.QuantPerGroup),
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
			t.Errorf("%v: error on rank 0 is %v, want a TimeoutError about rank 1", s, errs[0])
		}
		w.must(func(m *testRank) error {
			if m.rank == 1 {
				return nil
			}
			return buffers[0].checkPoisoned(w, m, s)
		})
	}
}
