package plan

import "testing"

// BenchmarkDigest is what the code of a phrase is made over, for 110 Steps.
func BenchmarkDigest(b *testing.B) {
	var steps []Step
	for n := range 110 {
		steps = append(steps, scaleTo(int32(n)))
	}
	for b.Loop() {
		Digest(steps)
	}
}

func BenchmarkSign(b *testing.B) {
	p := sealed()
	for b.Loop() {
		p.Sign(phraseKey)
	}
}

func BenchmarkConfirms(b *testing.B) {
	p := sealed()
	phrase := p.Sign(phraseKey)
	for b.Loop() {
		if !p.Confirms(phrase, phraseKey) {
			b.Fatal("it does not confirm its own plan")
		}
	}
}
