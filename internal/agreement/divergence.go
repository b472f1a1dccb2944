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

// The kinds of divergence, in the order of the checks.
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

// Variant is a value, such as an event, that some ranks sent.
type Variant struct {
	Ranks []int
	// Text describes an event as [event.Event.String] does.
	Text string
	// Site is the call site (file:line), or empty.
	Site     string
	Event    event.Event
	HasEvent bool
}

// DivergenceError reports a difference between ranks, in the same text on all participating ranks.
type DivergenceError struct {
	Group string
	Kind  Kind
	// Ledger is the pool's ID, for KindPlacement and KindPending.
	Ledger uint64
	// Position is that of the first differing event, for KindPlacement. If Last is greater, the
	// event is between the two, in a part that a rank no longer keeps.
	Position, Last uint64
	// Variants lists up to 16 variants, by their lowest rank.
	Variants []Variant
	// OtherRanks lists ranks whose variants do not fit.
	OtherRanks []int
	// Deviant lists the ranks that differ from the majority, if there is one. Ranks without a call
	// are ignored if others report different calls.
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
		b.WriteString([]string{": ", "; "}[min(i, 1)])
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

// Pool returns the pool's name for KindPlacement and KindPending, or "".
func (d *DivergenceError) Pool() string {
	if d.Kind != KindPlacement && d.Kind != KindPending {
		return ""
	}
	return d.Names.poolName(d.Ledger)
}

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

func (d *DivergenceError) hasKind(kind event.Kind) bool {
	return d.Kind == KindPlacement && slices.ContainsFunc(d.Variants, func(v Variant) bool {
		return v.HasEvent && v.Event.Kind == kind
	})
}

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

// indexesOfUsualAndDeviant returns the most frequent variant (on a tie, that of the lowest rank)
// and the first other one, or -1.
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

// reportsNoCall reports whether only v has no call. A fault may have stopped its ranks before their
// calls.
func (d *DivergenceError) reportsNoCall(v Variant) bool {
	return d.Kind == KindCollective && v.Text == noCall && len(d.Variants) > 2
}

func (d *DivergenceError) findDeviantRanks(rankCount int) {
	usualIndex, _ := d.indexesOfUsualAndDeviant()
	for _, v := range d.Variants {
		if d.reportsNoCall(v) {
			rankCount -= len(v.Ranks)
		}
	}
	if usualIndex < 0 || 2*len(d.ranksWithTextOf(usualIndex)) <= rankCount {
		return
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

// text converts a contribution's value to a Variant's text.
func (m *Machine) diverge(
	kind Kind, id uint64, v contributions, text func([]byte) (string, error),
) ([]byte, *Outcome, error) {
	d := m.newDivergence(kind, id)
	rankCount := len(v.otherRanks)
	for _, c := range v.list {
		description, err := text(c.value)
		if err != nil {
			return nil, nil, err
		}
		d.Variants = append(d.Variants,
			Variant{Ranks: c.ranks, Text: description, Site: string(c.detail)})
		rankCount += len(c.ranks)
	}
	d.OtherRanks = v.otherRanks
	d.findDeviantRanks(rankCount)
	return nil, &Outcome{Divergence: d, Absent: m.absent}, nil
}

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
