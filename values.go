package symmem

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"strconv"
	"sync/atomic"

	"symmem/driver"
	"symmem/event"
	"symmem/internal/ranked"
)

// MaxStep limits the text of a step, in bytes.
const MaxStep = 1024

// Limits on the names of values.
const (
	MaxValueName  = driver.MaxValueName  // in bytes
	MaxValueNames = driver.MaxValueNames // per group
)

// ValueOperation identifies a method of Group that compares or combines a value of each rank. Ranks
// exchange these numbers, so they must not change.
type ValueOperation uint64

// The operations on values. 0 is invalid.
const (
	ValueAgree ValueOperation = iota + 1
	ValueAny
	ValueAll
	ValueMin
	ValueMax
	ValueSum
	ValueStep // Group.Step; the value is a digest
	ValueAgreeFloat
	ValueAgreeString
	valueOperations
	// valueReports marks the exchange of the sizes of reports.
	valueReports
)

var valueOperationNames = [valueOperations]string{
	ValueAgree: "Agree", ValueAny: "Any", ValueAll: "All",
	ValueMin: "Min", ValueMax: "Max", ValueSum: "Sum",
	ValueStep: "Step", ValueAgreeFloat: "Agree", ValueAgreeString: "Agree",
}

// String returns the operation's name.
func (o ValueOperation) String() string {
	if o.isValid() {
		return valueOperationNames[o]
	}

	return fmt.Sprintf("ValueOperation(%d)", uint64(o))
}

func (o ValueOperation) isValid() bool { return o > 0 && o < valueOperations }

// mustBeEqual reports whether all ranks must pass the same value.
func (o ValueOperation) mustBeEqual() bool {
	return o == ValueAgree || o == ValueStep || o == ValueAgreeFloat || o == ValueAgreeString
}

// hasText reports whether the value is a text, of which ranks exchange only a digest.
func (o ValueOperation) hasText() bool { return o == ValueStep || o == ValueAgreeString }

// values implements the methods of Group that compare or combine a value of each rank.
type values struct {
	roster
	rt     *Runtime
	comm   driver.Communicator
	life   *lifetime
	events *groupEvents
	state  *ranked.Spin[groupState]
	// names maps names to values. It is replaced, never modified, with Group.state held.
	names atomic.Pointer[map[string]*valueName]
	// last is a ring of the latest calls: call n is at n%maxLatestCalls. Guarded by Group.state.
	last [maxLatestCalls]event.Event
	// count counts calls; guarded by Group.state.
	count uint64
	// launched counts the collectives before the latest step. It is guarded by the mu of the
	// valueName with the name stepName.
	launched   uint64
	latestStep string // its text and call site, or ""; guarded by Group.state
}

// setLatestStep records a step that is about to begin.
func (v *values) setLatestStep(c *valueCall) {
	text := fmt.Sprintf("%s at %s", c.text, v.rt.sites.text(c.site))
	v.state.Lock()
	defer v.state.Unlock()
	v.latestStep = text
}

// describeStep returns a text about the latest step, to be appended to that of a call. If there is
// no step, it returns "".
func (v *values) describeStep() string {
	v.state.Lock()
	defer v.state.Unlock()
	if v.latestStep == "" {
		return ""
	}

	return ", step " + v.latestStep
}

// maxLatestCalls is how many earlier values a DivergenceError describes.
const maxLatestCalls = 10

// combine checks that the calls of all ranks match, and combines their values. If the calls do not
// match, it returns a DivergenceError, and the group remains usable.
func (v *values) combine(ctx context.Context, c valueCall) (int64, error) {
	ctx = orBackground(ctx)
	mustRecordSite := v.rt.opts.CallSites || c.operation == ValueStep
	if c.site == 0 && mustRecordSite {
		c.site = v.rt.sites.callerSite()
	}

	n, err := v.findOrAddName(c.name)
	if err != nil {
		return 0, fmt.Errorf("value %q of group %s: %w", c.name, v.id, err)
	}
	defer v.events.deliver()
	n.mu.Lock()
	defer n.mu.Unlock()
	if c.operation == ValueStep {
		launched := v.comm.(driver.Values).Collectives() // findOrAddName has checked the type
		c.third = launched - v.launched
		v.launched = launched
		v.setLatestStep(&c)
	}

	if err := n.gather.Gather(ctx, c.words(), n.gathered); err != nil {
		return 0, v.life.awaitFault(err)
	}

	n.calls++
	result, isSame, err := combineWords(n.gathered)
	if err != nil {
		return 0, v.failInvalidData(n, err)
	}

	if !isSame {
		result = 0
		err = v.explainDifference(ctx, n, &c)
	}

	v.recordCall(&c)
	return result, err
}

// valueCall is a call that compares or combines a value. The ranks exchange its operation, its
// value and a third word.
type valueCall struct {
	operation ValueOperation
	name      string
	value     int64  // or the first half of a text's digest
	site      uint32 // index of the call site, or 0 if it was not recorded
	// text is the text of a step, or the quoted beginning of a string. It is empty in other calls.
	text string
	// third depends on the operation. For ValueStep, it is the number of collectives since the
	// previous step. For ValueAgreeString, it is the second half of the string's digest. Otherwise,
	// it is 0.
	third uint64
}

// words returns what the ranks exchange.
func (c *valueCall) words() driver.Words {
	return driver.Words{uint64(c.operation), uint64(c.value), c.third}
}

func (c *valueCall) event() event.Event {
	e := eventOf(c.words())
	e.Text = c.text
	return e
}

// eventOf describes a call of any rank by its words. The event lacks the text.
func eventOf(w driver.Words) event.Event {
	o := ValueOperation(w[0])
	e := event.Event{Kind: event.KindInteger, Operation: o.String(), Value: int64(w[1])}
	switch o {
	case ValueAny, ValueAll:
		e.Kind = event.KindFlag
	case ValueAgreeFloat:
		e.Kind = event.KindFloat
	case ValueAgreeString:
		e.Kind = event.KindText
	case ValueStep:
		e.Kind, e.Collectives = event.KindStep, w[2]
	default: // an integer
	}

	return e
}

// floatBits returns the bits of a float, which are the same for all NaNs.
func floatBits(value float64) int64 {
	if math.IsNaN(value) {
		value = math.NaN()
	}

	return int64(math.Float64bits(value))
}

// combineWords combines the values in the words of all ranks. isSame is true if the calls match:
// the operations must be the same. If the operation only compares, the other words must be, too.
func combineWords(byRank []driver.Words) (result int64, isSame bool, err error) {
	first := byRank[0]
	operation := ValueOperation(first[0])
	result = int64(first[1])
	isSame = true
	for rank, words := range byRank {
		if !ValueOperation(words[0]).isValid() {
			return 0, false, fmt.Errorf("rank %d of the group sent the unknown operation %d",
				rank, words[0])
		}

		if operation.mustBeEqual() {
			isSame = isSame && words == first
		} else {
			isSame = isSame && words[0] == first[0]
		}

		if rank > 0 {
			result = operation.combineTwo(result, int64(words[1]))
		}
	}

	return result, isSame, nil
}

// combineTwo combines two values. For operations that only compare, it returns a.
func (o ValueOperation) combineTwo(a, b int64) int64 {
	switch o {
	case ValueAny, ValueMax:
		return max(a, b)
	case ValueAll, ValueMin:
		return min(a, b)
	case ValueSum:
		return a + b
	default:
		return a
	}
}

func boolToInt(b bool) int64 {
	if b {
		return 1
	}

	return 0
}

// stepName is the name of the value of steps. It differs from names of the program, which do not
// begin with a space.
const stepName = " step"

// step implements Group.Step. site is the index of the call site, or 0 if it is not known.
func (v *values) step(ctx context.Context, text string, site uint32) error {
	ctx = orBackground(ctx)
	if !v.rt.stepGuard { // SYMMEM_STEP_GUARD=0
		return v.life.cause(ctx)
	}

	if text == "" || len(text) > MaxStep {
		return invalid("the step has %d bytes, but 1 to %d are required", len(text), MaxStep)
	}

	digest := fnv.New64a()
	_, _ = digest.Write([]byte(text)) // a hash returns no errors
	_, err := v.combine(ctx, valueCall{
		operation: ValueStep, name: stepName, value: int64(digest.Sum64()), site: site,
		text: text,
	})
	return err
}

// maxQuoted limits the part of a string that messages contain, in bytes.
const maxQuoted = 120

// agreeString implements Group.AgreeString. site is the index of the call site, or 0 if it is not
// known.
func (v *values) agreeString(ctx context.Context, name, text string, site uint32) error {
	digest := sha256.Sum256([]byte(text)) // ranks exchange 128 bits of the digest
	low := binary.LittleEndian.Uint64(digest[:])
	high := binary.LittleEndian.Uint64(digest[8:])
	quoted := strconv.Quote(text[:min(len(text), maxQuoted)])
	if len(text) > maxQuoted {
		quoted += fmt.Sprintf("... (%d bytes, digest %016x)", len(text), low)
	}

	_, err := v.combine(ctx, valueCall{
		operation: ValueAgreeString, name: name, value: int64(low), third: high, text: quoted,
		site: site,
	})
	return err
}

// valueName is a name of values in a group. The n-th calls of all ranks with the name match.
type valueName struct {
	mu       ranked.Mutex[valueMu] // held by a call
	gather   driver.Named          // exchanges words
	gathered []driver.Words        // by group rank, from the latest exchange; guarded by mu
	calls    uint64                // number of calls; guarded by mu
}

// findOrAddName returns the valueName with a name. It takes a lock only if the name is new.
func (v *values) findOrAddName(name string) (*valueName, error) {
	if n := v.namedValues()[name]; n != nil {
		return n, nil
	}

	backend, ok := v.comm.(driver.Values)
	if !ok {
		return nil, ErrUnsupported
	}

	v.state.Lock()
	defer v.state.Unlock()
	if n := v.namedValues()[name]; n != nil {
		return n, nil
	}

	isStep := name == stepName
	gather, err := backend.Named(name, isStep)
	if err != nil {
		return nil, err
	}

	n := &valueName{gather: gather, gathered: make([]driver.Words, len(v.ranks))}
	names := map[string]*valueName{name: n}
	maps.Copy(names, v.namedValues())
	v.names.Store(&names)
	return n, nil
}

// namedValues returns the current map, which callers must not modify.
func (v *values) namedValues() map[string]*valueName {
	if known := v.names.Load(); known != nil {
		return *known
	}

	return nil
}

// recordCall records a call for latestCalls, and queues its event.
func (v *values) recordCall(c *valueCall) {
	e := c.event()
	e.Name = c.name
	e.Site = v.rt.sites.text(c.site)
	v.state.Lock()
	defer v.state.Unlock()
	v.last[v.count%maxLatestCalls] = e
	v.count++
	v.events.recordValue(&e)
}

// latestCalls describes the latest calls, the latest first.
func (v *values) latestCalls() (texts []string) {
	v.state.Lock()
	last, count := v.last, v.count // a copy of the ring
	v.state.Unlock()
	for i := range min(count, maxLatestCalls) {
		e := &last[(count-1-i)%maxLatestCalls]
		text := e.String()
		if e.Site != "" {
			text += " at " + e.Site
		}

		texts = append(texts, text)
	}

	return texts
}
