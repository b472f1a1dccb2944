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

// The kinds of divergence, in the order in which they are checked.
const (
	// KindTag means that the ranks are executing different operations.
	KindTag Kind = iota + 1
	// KindLedgers means that the ranks compare different pools.
	KindLedgers
	// KindPlacement means that a pool has different histories on the ranks.
	KindPlacement
	// KindPending means that ranks with identical histories are about to register different
	// segments.
	KindPending
	// KindCollective means that ranks with identical histories call different collectives.
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

// Variant is an observation, such as an event, that differs from those of other ranks.
type Variant struct {
	Ranks []int
	// Text describes the observation. For an event, it is [event.Event.String].
	Text string
	// Site is the call site as file:line, if it is known.
	Site     string
	Event    event.Event
	HasEvent bool
}

// DivergenceError reports a difference between ranks that should behave identically. Its text is
// the same on every rank that took part in the agreement.
type DivergenceError struct {
	Group string
	Kind  Kind
	// Ledger is the pool's id, for KindPlacement and KindPending.
	Ledger uint64
	// Position is the position of the first differing event, for KindPlacement. If Last is greater,
	// the event is between the two, in a part of the history that some rank no longer keeps.
	Position, Last uint64
	// Variants lists up to 16 observations, ordered by the lowest rank that made each.
	Variants []Variant
	// OtherRanks lists the ranks whose observations do not fit into Variants.
	OtherRanks []int
	// Deviant lists the ranks that differ from the majority, or is empty if there is no majority.
	// If ranks report different calls, ranks that report no call are ignored.
	Deviant []int
	// Difference is the likely kind of difference, for KindPlacement.
	Difference Difference
	// Absent lists the ranks that missed at least one round.
	Absent []int
	// Names determines how the report names ranks and pools. The other fields contain group ranks.
	Names Names
}

// Error returns the whole report as one paragraph.
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

// closingText returns the end of the report: the difference or the deviant ranks, hints, and the
// absent ranks.
func (d *DivergenceError) closingText() string {
	out := ""
	usual, deviant := d.indexesOfUsualAndDeviant()
	switch {
	case d.Difference == DifferenceHeldBlock:
		out = "; " + d.Difference.sentence(d.Names, nil, nil)
	case d.Difference != DifferenceUnknown && usual >= 0 && deviant >= 0:
		out = "; " + d.Difference.sentence(
			d.Names, d.ranksWithTextOf(deviant), d.ranksWithTextOf(usual))
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

// indexesOfUsualAndDeviant returns the index of the usual (most frequent) variant and the index of
// the first variant that differs from it, or -1. On a tie, the variant with the lowest rank is
// usual.
func (d *DivergenceError) indexesOfUsualAndDeviant() (usual, deviant int) {
	usual, deviant = -1, -1
	maxRanks := 0
	for i, v := range d.Variants {
		if n := len(d.ranksWithTextOf(i)); n > maxRanks && !d.reportsNoCall(v) {
			usual, maxRanks = i, n
		}
	}
	for i, v := range d.Variants {
		if v.Text != d.Variants[usual].Text && !d.reportsNoCall(v) {
			return usual, i
		}
	}
	return usual, deviant
}

// reportsNoCall reports whether v contains no call while other variants contain different calls. A
// fault may have stopped the ranks of v before their calls.
func (d *DivergenceError) reportsNoCall(v Variant) bool {
	return d.Kind == KindCollective && v.Text == noCall && len(d.Variants) > 2
}

func (d *DivergenceError) findDeviantRanks(ranks int) {
	usual, _ := d.indexesOfUsualAndDeviant()
	for _, v := range d.Variants {
		if d.reportsNoCall(v) {
			ranks -= len(v.Ranks)
		}
	}
	if usual < 0 || 2*len(d.ranksWithTextOf(usual)) <= ranks {
		return
	}
	for _, v := range d.Variants {
		if v.Text != d.Variants[usual].Text && !d.reportsNoCall(v) {
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

// diverge ends the agreement with a divergence. text converts the value of a contribution to the
// text of its Variant.
func (m *Machine) diverge(
	kind Kind, id uint64, v contributions, text func([]byte) (string, error),
) ([]byte, *Outcome, error) {
	d := m.newDivergence(kind, id)
	ranks := len(v.otherRanks)
	for _, c := range v.list {
		description, err := text(c.value)
		if err != nil {
			return nil, nil, err
		}
		d.Variants = append(d.Variants,
			Variant{Ranks: c.ranks, Text: description, Site: string(c.detail)})
		ranks += len(c.ranks)
	}
	d.OtherRanks = v.otherRanks
	d.findDeviantRanks(ranks)
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
