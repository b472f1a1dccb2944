package message

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// step is a call of Post for a receive or, if receive is empty, a call of Arrive for a message.
type step struct {
	receive string // name of the receive
	source  int    // of the receive or the message
	tag     int
	number  uint64 // of the message
	claims  string // expected result, as returned by formatClaims
}

// apply makes the call with segment 0: messages are not ordered with collectives.
func (s step) apply(m *Matcher[string]) []Claim[string] {
	if s.receive != "" {
		return m.Post(s.receive, s.tag, s.source, 0)
	}

	return m.Arrive(Arrival{Source: s.source, Tag: s.tag, Number: s.number})
}

// formatClaims returns, for example, "a=3:1 " if receive a claims message 1 from source 3.
func formatClaims(claims []Claim[string]) string {
	var all string
	for _, c := range claims {
		all += fmt.Sprintf("%s=%d:%d ", c.Receive, c.Source, c.Number)
	}

	return all
}

// callOrderCases contains the calls on one rank and the claims that each must return. A claim
// assigns a message to a receive. The messages of each source and tag are numbered from 1.
var callOrderCases = []struct {
	name      string
	steps     []step
	unclaimed []Arrival // messages that have arrived but were not claimed in the end
}{
	{
		name: "a receive from a source claims its next number before it arrives",
		steps: []step{
			{receive: "a", source: 3, claims: "a=3:1 "},
			{receive: "b", source: 3, claims: "b=3:2 "},
			{source: 3, number: 1},
			{source: 3, number: 2},
			{source: 3, number: 3},
			{receive: "c", source: 3, claims: "c=3:3 "},
		},
	},
	{
		name: "tags and sources are numbered separately",
		steps: []step{
			{receive: "a", source: 1, claims: "a=1:1 "},
			{receive: "b", source: 1, tag: 7, claims: "b=1:1 "},
			{receive: "c", source: 2, claims: "c=2:1 "},
		},
	},
	{
		name: "a receive from any source claims the first arrival",
		steps: []step{
			{source: 2, number: 1},
			{source: 1, number: 1},
			{receive: "a", source: Any, claims: "a=2:1 "},
			{receive: "b", source: Any, claims: "b=1:1 "},
		},
	},
	{
		name: "a receive from any source waits for a message",
		steps: []step{
			{receive: "a", source: Any},
			{source: 1, tag: 5, number: 1},
			{source: 1, number: 1, claims: "a=1:1 "},
		},
		unclaimed: []Arrival{{Source: 1, Tag: 5, Number: 1}},
	},
	{
		name: "a source's messages are claimed by number, not by arrival",
		steps: []step{
			{receive: "a", source: Any},
			{source: 1, number: 2},
			{source: 2, number: 3},
			{source: 1, number: 1, claims: "a=1:1 "},
			{receive: "b", source: Any, claims: "b=1:2 "},
		},
		unclaimed: []Arrival{{Source: 2, Number: 3}},
	},
	{
		name: "later receives of a tag wait for a receive from any source",
		steps: []step{
			{receive: "a", source: Any},
			{receive: "b", source: 1},
			{receive: "c", source: 1, tag: 4, claims: "c=1:1 "},
			{source: 1, number: 1, claims: "a=1:1 b=1:2 "},
			{source: 1, number: 2},
		},
	},
	{
		name: "a message for the first receive also unblocks later receives",
		steps: []step{
			{receive: "a", source: Any},
			{receive: "b", source: 2},
			{receive: "c", source: Any},
			{source: 1, number: 2},
			{source: 1, number: 1, claims: "a=1:1 b=2:1 c=1:2 "},
		},
	},
	{
		name: "a duplicate message is ignored",
		steps: []step{
			{source: 1, number: 1},
			{source: 1, number: 1},
			{receive: "a", source: 1, claims: "a=1:1 "},
			{source: 1, number: 1},
		},
	},
}

func TestMessagesAreClaimedInCallOrder(t *testing.T) {
	for _, c := range callOrderCases {
		t.Run(c.name, func(t *testing.T) {
			var m Matcher[string]
			for i, s := range c.steps {
				if got := formatClaims(s.apply(&m)); got != s.claims {
					t.Fatalf("step %d, %+v: got claims %q, want %q", i, s, got, s.claims)
				}
			}

			if got := m.Unclaimed(); !slices.Equal(got, c.unclaimed) {
				t.Errorf("Unclaimed() = %+v, want %+v", got, c.unclaimed)
			}
		})
	}
}

// simpleMatcher is a model of Matcher that forgets nothing. It decides all claims anew after each
// call.
type simpleMatcher struct {
	posts    []post
	arrivals []Arrival
}

// post is a call of Post.
type post struct {
	receive     int
	tag, source int
}

// claims returns all claims so far. Within a tag, receives are served in order, so a receive from
// any source without a message blocks those after it.
func (m *simpleMatcher) claims() (claims []Claim[int]) {
	claimedCounts := map[Key]uint64{}
	isBlocked := map[int]bool{} // by tag
	for _, p := range m.posts {
		if isBlocked[p.tag] {
			continue
		}

		source := p.source
		if source == Any {
			i := slices.IndexFunc(m.arrivals, func(a Arrival) bool {
				return a.Tag == p.tag && a.Number == claimedCounts[Key{a.Source, p.tag}]+1
			})
			if i < 0 {
				isBlocked[p.tag] = true
				continue
			}

			source = m.arrivals[i].Source
		}

		key := Key{source, p.tag}
		claimedCounts[key]++
		claims = append(claims, Claim[int]{
			Receive: p.receive, Source: source, Number: claimedCounts[key],
		})
	}

	return claims
}

// After each event, TestMatcherMatchesModel compares all claims made so far with the model's
// claims. It thus also checks that a later event never changes a claim.
func TestMatcherMatchesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m Matcher[int]
		var simple simpleMatcher
		claimsByReceive := map[int]Claim[int]{}
		sentCounts := map[Key]uint64{}
		for i := range rapid.IntRange(1, 60).Draw(t, "events") {
			tag := rapid.IntRange(0, 2).Draw(t, "tag")
			var claims []Claim[int]
			if rapid.Bool().Draw(t, "post") {
				source := rapid.IntRange(Any, 2).Draw(t, "source") // Any is -1
				simple.posts = append(simple.posts, post{receive: i, tag: tag, source: source})
				claims = m.Post(i, tag, source, 0)
			} else {
				source := rapid.IntRange(0, 2).Draw(t, "sender")
				key := Key{source, tag}
				sentCounts[key]++
				a := Arrival{Source: source, Tag: tag, Number: sentCounts[key]}
				simple.arrivals = append(simple.arrivals, a)
				claims = m.Arrive(a)
			}

			for _, c := range claims {
				if _, isClaimed := claimsByReceive[c.Receive]; isClaimed {
					t.Fatalf("receive %d has two claims", c.Receive)
				}

				claimsByReceive[c.Receive] = c
			}

			want := simple.claims()
			if len(want) != len(claimsByReceive) {
				t.Fatalf("got claims %v, want %v", claimsByReceive, want)
			}

			for _, w := range want {
				if got := claimsByReceive[w.Receive]; got != w {
					t.Fatalf("got claim %+v, want %+v", got, w)
				}
			}
		}
	})
}

func BenchmarkPostAndArrive(b *testing.B) {
	var m Matcher[int]
	const receive, tag, source, segment = 0, 0, 1, 0
	for number := uint64(1); b.Loop(); number++ {
		m.Post(receive, tag, source, segment)
		m.Arrive(Arrival{Source: source, Number: number})
	}
}

// Collectives divide a program into segments. A receive from any source must not claim a message
// of a later segment, even if it arrives first: rank 2 is faster, and has already sent a message of
// segment 2. The receive in segment 1 must wait for rank 1.
func TestAnySourceClaimsOnlyMessagesInItsSegment(t *testing.T) {
	var m Matcher[string]
	const tag = 0
	if claims := m.Post("first", tag, Any, 1); len(claims) != 0 {
		t.Fatalf("got claims %v before any arrival, want none", claims)
	}

	later := Arrival{Source: 2, Number: 1, Segment: 2}
	if claims := m.Arrive(later); len(claims) != 0 {
		t.Fatalf("got claims %v after a message in a later segment, want none", claims)
	}

	claims := m.Arrive(Arrival{Source: 1, Number: 1, Segment: 1})
	if got := formatClaims(claims); got != "first=1:1 " {
		t.Fatalf("after a message in segment 1: got claims %q, want message 1 from rank 1", got)
	}

	claims = m.Post("second", tag, Any, 2)
	if got := formatClaims(claims); got != "second=2:1 " {
		t.Fatalf("after a receive in segment 2: got claims %q, want message 1 from rank 2", got)
	}
}
