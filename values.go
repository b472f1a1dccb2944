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

// hasText reports whether ranks exchange a digest of a text.
func (o ValueOperation) hasText() bool { return o == ValueStep || o == ValueAgreeString }

type values struct {
	roster
	rt     *Runtime
	comm   driver.Communicator
	life   *lifetime
	events *groupEvents
	state  *ranked.Spin[groupState]
	names  atomic.Pointer[map[string]*valueName] // written with Group.state held
	// last holds the latest calls; guarded by Group.state.
	last [maxLatestCalls]event.Event
	// count counts calls; guarded by Group.state.
	count uint64
	// launched counts collectives before the latest step; guarded by the mu of stepName.
	launched   uint64
	latestStep string // guarded by Group.state
}

func (v *values) beginStep(c *valueCall) {
	text := fmt.Sprintf("%s at %s", c.text, v.rt.sites.text(c.site))
	v.state.Lock()
	defer v.state.Unlock()
	v.latestStep = text
}

func (v *values) describeStep() string {
	v.state.Lock()
	defer v.state.Unlock()
	if v.latestStep == "" {
		return ""
	}
	return ", step " + v.latestStep
}

const maxLatestCalls = 10

// combine checks that the calls of all ranks match, and combines their values.
func (v *values) combine(ctx context.Context, c valueCall) (int64, error) {
	ctx = orBackground(ctx)
	if c.site == 0 && (v.rt.opts.CallSites || c.operation == ValueStep) {
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
		launched := v.comm.(driver.Values).Collectives()
		c.launched, v.launched = launched-v.launched, launched
		v.beginStep(&c)
	}
	if err := n.gather.Gather(ctx, c.words(), n.gathered); err != nil {
		return 0, v.life.awaitFault(err)
	}
	n.calls++
	result, same, err := combineWords(n.gathered)
	switch {
	case err != nil:
		return 0, v.failInvalidData(n, err)
	case !same:
		result, err = 0, v.explainDifference(ctx, n, &c)
	}
	v.recordCall(&c)
	return result, err
}

type valueCall struct {
	operation ValueOperation
	name      string
	value     int64
	site      uint32
	// text is a step's, or the quoted beginning of a string.
	text string
	// launched counts collectives since the previous step. For ValueAgreeString, it holds the
	// second half of the string's digest.
	launched uint64
}

func (c *valueCall) words() driver.Words {
	return driver.Words{uint64(c.operation), uint64(c.value), c.launched}
}

func (c *valueCall) event() event.Event {
	e := eventOf(c.words())
	e.Text = c.text
	return e
}

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
	default:
	}
	return e
}

// floatBits makes all NaNs equal.
func floatBits(value float64) int64 {
	if math.IsNaN(value) {
		value = math.NaN()
	}
	return int64(math.Float64bits(value))
}

// combineWords reports whether the calls match: the operations and, for operations that only
// compare, all other words must be the same.
func combineWords(all []driver.Words) (result int64, same bool, err error) {
	first := all[0]
	o, result := ValueOperation(first[0]), int64(first[1])
	same = true
	for r, w := range all {
		if !ValueOperation(w[0]).isValid() {
			return 0, false, fmt.Errorf("rank %d of the group sent the unknown operation %d",
				r, w[0])
		}
		same = same && w[0] == first[0] && (!o.mustBeEqual() || w == first)
		if r > 0 {
			result = o.combineTwo(result, int64(w[1]))
		}
	}
	return result, same, nil
}

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

// stepName is not a name of values, which do not begin with a space.
const stepName = " step"

func (v *values) step(ctx context.Context, what string, site uint32) error {
	ctx = orBackground(ctx)
	if !v.rt.stepGuard {
		return v.life.cause(ctx)
	}
	if what == "" || len(what) > MaxStep {
		return invalid("the step has %d bytes, but 1 to %d are required", len(what), MaxStep)
	}
	digest := fnv.New64a()
	_, _ = digest.Write([]byte(what))
	_, err := v.combine(ctx, valueCall{
		operation: ValueStep, name: stepName, value: int64(digest.Sum64()), site: site,
		text: what,
	})
	return err
}

const maxQuoted = 120

func (v *values) agreeString(ctx context.Context, name, text string, site uint32) error {
	digest := sha256.Sum256([]byte(text))
	low, high := binary.LittleEndian.Uint64(digest[:]), binary.LittleEndian.Uint64(digest[8:])
	what := strconv.Quote(text[:min(len(text), maxQuoted)])
	if len(text) > maxQuoted {
		what += fmt.Sprintf("... (%d bytes, digest %016x)", len(text), low)
	}
	_, err := v.combine(ctx, valueCall{
		operation: ValueAgreeString, name: name, value: int64(low), launched: high, text: what,
		site: site,
	})
	return err
}

type valueName struct {
	mu       ranked.Mutex[valueMu] // held by a call
	gather   driver.Named
	gathered []driver.Words // by the latest call; guarded by mu
	calls    uint64         // guarded by mu
}

// findOrAddName takes a lock only if the name is new.
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
	gather, err := backend.Named(name, name == stepName)
	if err != nil {
		return nil, err
	}
	n := &valueName{gather: gather, gathered: make([]driver.Words, len(v.ranks))}
	names := map[string]*valueName{name: n}
	maps.Copy(names, v.namedValues())
	v.names.Store(&names)
	return n, nil
}

func (v *values) namedValues() map[string]*valueName {
	if known := v.names.Load(); known != nil {
		return *known
	}
	return nil
}

func (v *values) recordCall(c *valueCall) {
	e := c.event()
	e.Name, e.Site = c.name, v.rt.sites.text(c.site)
	v.state.Lock()
	defer v.state.Unlock()
	v.last[v.count%maxLatestCalls] = e
	v.count++
	v.events.recordValue(&e)
}

// latestCalls lists the latest call first.
func (v *values) latestCalls() (texts []string) {
	v.state.Lock()
	last, count := v.last, v.count
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
