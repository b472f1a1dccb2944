package agreement

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"symmem/event"
	"symmem/internal/ranklist"
)

// Kind classifies a divergence.
type Kind uint8

// The kinds of divergence, in the order in which an agreement checks them.
const (
	// KindTag means that the ranks are executing different operations.
	KindTag Kind = iota + 1
	// KindLedgers means that the ranks compare different pools.
	KindLedgers
	// KindPlacement means that a pool has different histories on the ranks.
	KindPlacement
	// KindPending means that the ranks are about to register different segments.
	KindPending
	// KindCollective means that the ranks call different collectives.
	KindCollective
)

var kindNames = [...]string{"", "operation", "pools", "placement", "pending", "collective"}

// String returns the name of k.
func (k Kind) String() string {
	if k == 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("kind %d", uint8(k))
	}

	return kindNames[k]
}

// Variant is one of several different values, such as events, that ranks sent.
type Variant struct {
	Ranks []int // ranks that sent the value
	// Text describes the value. For an event, it is the result of [event.Event.String].
	Text string
	// Site is the call site (file:line), or empty.
	Site     string
	Event    event.Event // if HasEvent is true
	HasEvent bool
}

// DivergenceError reports a difference between ranks. Its text is the same on all ranks that took
// part in the agreement.
type DivergenceError struct {
	Group string
	Kind  Kind
	// Ledger is the pool's ID, for KindPlacement and KindPending.
	Ledger uint64
	// Position is the position of the first differing event, for KindPlacement. If Last is greater
	// than Position, the event is between Position and Last, in a part of the history that a rank no
	// longer keeps.
	Position, Last uint64
	// Variants lists up to 16 variants, sorted by the lowest rank of each.
	Variants []Variant
	// OtherRanks lists the ranks that sent a value that is not in Variants.
	OtherRanks []int
	// Deviant lists the ranks that differ from the majority. It is empty if there is no majority.
	// Ranks without a call are ignored if others report different calls.
	Deviant []int
	// Difference is set for KindPlacement.
	Difference Difference
	// Absent lists ranks that missed a round.
	Absent []int
	Names  Names
}

// Error returns the report as one paragraph.
func (d *DivergenceError) Error() string {
	var b strings.Builder
	b.WriteString(d.headingText())
	for i, v := range d.Variants {
		if i == 0 {
			b.WriteString(": ")
		} else {
			b.WriteString("; ")
		}

		have := chooseVerb(v.Ranks, "has", "have")
		fmt.Fprintf(&b, "%s %s %q", d.Names.ranks(v.Ranks), have, v.Text)
		if v.Site != "" {
			fmt.Fprintf(&b, " at %s", v.Site)
		}
	}

	if len(d.OtherRanks) > 0 {
		fmt.Fprintf(&b, "; %s %s a different observation",
			d.Names.ranks(d.OtherRanks), chooseVerb(d.OtherRanks, "has", "have"))
	}

	b.WriteString(d.closingText())
	return b.String()
}

func (d *DivergenceError) headingText() string {
	switch d.Kind {
	case KindTag:
		return fmt.Sprintf("group %s: ranks are in different operations", d.Group)
	case KindLedgers:
		return fmt.Sprintf("group %s: ranks have different pools", d.Group)
	case KindPending:
		return fmt.Sprintf("group %s: ranks are about to register different segments of %s",
			d.Group, d.Pool())
	case KindCollective:
		return fmt.Sprintf("group %s: ranks call different collectives", d.Group)
	case KindPlacement:
	}

	if d.Last > d.Position {
		return fmt.Sprintf("group %s: ranks diverged in %s between events %d and %d, "+
			"which are no longer kept", d.Group, d.Pool(), d.Position, d.Last)
	}

	return fmt.Sprintf("group %s: ranks diverged in %s at event %d",
		d.Group, d.Pool(), d.Position)
}

// Pool returns the name of the pool for KindPlacement and KindPending, and "" for other kinds.
func (d *DivergenceError) Pool() string {
	if d.Kind != KindPlacement && d.Kind != KindPending {
		return ""
	}

	return d.Names.poolName(d.Ledger)
}

// closingText returns the end of the report: the difference, advice and the absent ranks.
func (d *DivergenceError) closingText() string {
	out := ""
	usualIndex, deviantIndex := d.indexesOfUsualAndDeviant()
	switch {
	case d.Difference == DifferenceHeldBlock:
		out = "; " + d.Difference.describe(d.Names, nil, nil)
	case d.Difference != DifferenceUnknown && usualIndex >= 0 && deviantIndex >= 0:
		out = "; " + d.Difference.describe(
			d.Names, d.ranksWithTextOf(deviantIndex), d.ranksWithTextOf(usualIndex))
	case len(d.Deviant) > 0:
		out = fmt.Sprintf("; %s %s from the majority",
			d.Names.shortRanks(d.Deviant), chooseVerb(d.Deviant, "deviates", "deviate"))
	}

	if d.Difference != DifferenceHeldBlock && d.hasKind(event.KindFree) {
		out += "; if garbage collection caused the free, its time differs between ranks: free the " +
			"buffer explicitly, at the same place in the program on all ranks"
	}

	if d.hasKind(event.KindSegment) {
		out += "; segments differ if ranks request different sizes, or if a device has less memory: " +
			"in that case, set a pool capacity that is available on every device"
	}

	if len(d.Absent) > 0 {
		out += fmt.Sprintf("; %s did not take part", d.Names.ranks(d.Absent))
	}

	return out
}

// hasKind reports whether a differing event has the given kind.
func (d *DivergenceError) hasKind(kind event.Kind) bool {
	return d.Kind == KindPlacement && slices.ContainsFunc(d.Variants, func(v Variant) bool {
		return v.HasEvent && v.Event.Kind == kind
	})
}

// ranksWithTextOf returns the ranks of all variants that have the same Text as variant i. Variants
// with the same Text can differ in Site.
func (d *DivergenceError) ranksWithTextOf(i int) []int {
	var out []int
	for _, v := range d.Variants {
		if v.Text == d.Variants[i].Text {
			out = append(out, v.Ranks...)
		}
	}

	slices.Sort(out)
	return out
}

// indexesOfUsualAndDeviant returns the index of the variant whose Text most ranks sent, and of the
// first variant with another Text. If several are equally frequent, the first is the usual
// variant. An index is -1 if there is no such variant. Variants for which reportsNoCall is true
// are ignored.
func (d *DivergenceError) indexesOfUsualAndDeviant() (usualIndex, deviantIndex int) {
	usualIndex, deviantIndex = -1, -1
	maxRanks := 0
	for i, v := range d.Variants {
		if n := len(d.ranksWithTextOf(i)); n > maxRanks && !d.reportsNoCall(v) {
			usualIndex, maxRanks = i, n
		}
	}

	for i, v := range d.Variants {
		if v.Text != d.Variants[usualIndex].Text && !d.reportsNoCall(v) {
			return usualIndex, i
		}
	}

	return usualIndex, deviantIndex
}

// reportsNoCall reports whether v only means that its ranks called no collective, while others
// called different ones. A fault may have stopped these ranks before their calls.
func (d *DivergenceError) reportsNoCall(v Variant) bool {
	return d.Kind == KindCollective && v.Text == noCall && len(d.Variants) > 2
}

// setDeviant sets d.Deviant. rankCount is the number of ranks that sent a value.
func (d *DivergenceError) setDeviant(rankCount int) {
	usualIndex, _ := d.indexesOfUsualAndDeviant()
	for _, v := range d.Variants {
		if d.reportsNoCall(v) {
			rankCount -= len(v.Ranks)
		}
	}

	if usualIndex < 0 || 2*len(d.ranksWithTextOf(usualIndex)) <= rankCount {
		return // no majority
	}

	for _, v := range d.Variants {
		if v.Text != d.Variants[usualIndex].Text && !d.reportsNoCall(v) {
			d.Deviant = append(d.Deviant, v.Ranks...)
		}
	}

	d.Deviant = append(d.Deviant, d.OtherRanks...)
	slices.Sort(d.Deviant)
}

func (m *Machine) newDivergence(kind Kind, id uint64) *DivergenceError {
	return &DivergenceError{
		Group: m.config.Group, Kind: kind, Ledger: id, Absent: m.absent, Names: m.config.Names,
	}
}

// diverge ends the agreement with a divergence in the contributions. describe returns the
// Variant.Text of a contribution's value. The results are those of Machine.Step, without a
// payload.
func (m *Machine) diverge(
	kind Kind, id uint64, v contributions, describe func(value []byte) (string, error),
) ([]byte, *Outcome, error) {
	d := m.newDivergence(kind, id)
	rankCount := len(v.otherRanks)
	for _, c := range v.list {
		text, err := describe(c.value)
		if err != nil {
			return nil, nil, err
		}

		d.Variants = append(d.Variants,
			Variant{Ranks: c.ranks, Text: text, Site: string(c.detail)})
		rankCount += len(c.ranks)
	}

	d.OtherRanks = v.otherRanks
	d.setDeviant(rankCount)
	return nil, &Outcome{Divergence: d, Absent: m.absent}, nil
}

// describeTag returns the tag in a message's value, which follows a byte with the mode.
func describeTag(value []byte) (string, error) {
	if len(value) < 1 || len(value) > 1+MaxTag || value[0] > byte(ModePrefix) {
		return "", protocolError("the tag has a wrong size or an unknown mode")
	}

	return string(value[1:]), nil
}

func (n Names) describePools(value []byte) (string, error) {
	if len(value) == 0 {
		return "no pool", nil
	}

	pools := make([]string, 0, len(value)/8)
	for _, id := range decodeUint64s(value) {
		pools = append(pools, n.poolName(id))
	}

	return strings.Join(pools, ", "), nil
}

func describePending(value []byte) (string, error) {
	count := binary.LittleEndian.Uint64(value)
	return fmt.Sprintf("%s pending, digest %016x", ranklist.Plural(count, "segment"),
		binary.LittleEndian.Uint64(value[8:])), nil
}
