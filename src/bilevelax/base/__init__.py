"""What everything stands on: words of refusal, how programs are compiled, whether the compiler is right."""
