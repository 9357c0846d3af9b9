"""Claims about edge devices: few-shot latencies of networks, chips and microcontrollers."""
